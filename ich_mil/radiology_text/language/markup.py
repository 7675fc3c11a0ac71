r"""Plain text of a report: markup, escapes and forms of archives become lines, words and colons.

In: a report with HTML, RTF, HL7 segments and escapes, quoted-printable, literal "\n", check boxes, or entries
such as "hemorrhage - negative". Out: text in which a line break stands for each break of the source, check
boxes that are not ticked are gone, and the value of an entry stands after a colon.
"""

import html
import re
import unicodedata

_VALUE = (
    r"(?:none|no|nil|neg|negative|absent|not|present|yes|pos|positive|true|false|excluded|ruled|denied"
    r"|[01+yn])\b"
)
_ANSWERED = rf"(?={_VALUE}\s*(?:[.,;\n]|$))"
_ASKED = r"(?:[ ]+(?:present|seen|detected|identified|found)|[ ]*\([a-z ]+\))?[ ]*[?:][ ]+(?:A:[ ]*)?"
_SIGNS = r"(?:[ ]*(?:=|→|->|=>|\||\.{2,}|…|:-)[ ]*|[ ]+[-–—]+[ ]+|[ ]+:[ ]+)"
_CHOICE = r"(?:select|choose|blank|pick|insert|none|present|yes|free text|[/|])"
_TICKED = r"(?:\[ ?[xX✓✔] ?\]|\( ?[xX✓✔] ?\)|☒|☑|✓|✔)"
_BOX = r"(?:\[ ?\]|\( ?\)|☐)"
_RULES: tuple[tuple[str, str], ...] = (
    (r"\\\.(?:br|sp|in|ti|ce|fi|nf|sk)[^\\\n]{0,4}\\", "\n"),  # HL7 formatting
    (r"\\[HN]\\", ""),
    (r"\\T\\", "&"),
    (r"\\[FR]\\", "\n"),
    (r"\\[SE]\\", ""),
    (r"(?:\\r\\n|\\n|\\r)(?![a-z]{3,}\\)", "\n"),  # literal escapes
    (rf"(?i)(?:\\t|\t)+(?={_VALUE})", ": "),
    (r"\\t", " "),
    (r"</t[dh]>\s*<t[dh]\b[^<>]*>", ": "),
    (r"(?m)^([A-Za-z][A-Za-z ]{2,40})[,;]([01])[ ]*$", r"\1: \2"),  # rows of a table
    (r"</?(?:p|div|br|li|ul|ol|tr|td|th|table|h\d|section|hr)\b[^<>]*>", "\n"),  # HTML blocks
    (r"(?is)<(del|s|strike)>.*?</\1>", " "),
    (r"<[A-Za-z/!][^<>]*>", ""),
    (r"(?m)^[ \t]*\|+[ \t]*|[ \t]*\|[| \t]*$", ""),  # ends of the rows of a table
    (r"_{2,}(?!\w)|\*{3,}", "[blank]"),
    (rf"(?i)\[[^\[\]\n]*{_CHOICE}[^\[\]\n]*\]", "{ }"),
    (r"\*\*|__(?=\w)|(?<=\w)__(?!_)", ""),  # Markdown
    (r"[ \t]*~[ \t]*", "\n"),
    (r"[ ]+--+[ ]+", "; "),  # HL7 repetition
    (r"(?i)\b(vs?)\.(?=[ ])", r"\1"),
    (r"[\u00a0\u2000-\u200a\u202f\t]", " "),
    (r"[\u200b-\u200f\ufeff\u00ad]", ""),
    (r"\r\n?", "\n"),
    (r"(?<=[a-z]{2})-\n[ ]*(?=[a-z])", ""),  # a word divided at the end of a line
    (r"(?i)\b(ca)n[’']?t\b", r"\1n not"),
    (r"(?i)n[’']t\b", " not"),
    (rf"(?i){_ASKED}{_ANSWERED}", ": "),
    (r"(?i)\(\s*(?:y\s*/\s*n|yes\s*/\s*no)\s*\)", " "),
    (r"\[(?=[^\[\]\n]*\w{2})([^\[\]\n]*)\]", r"(\1)"),
    (rf"{_BOX}[^\[\(☐☒☑✓✔\n]*", " "),
    (rf"(?<=\w)[ ]*{_TICKED}[ ]*", ": "),
    (_TICKED, " "),
    (r"[ ]*\(\s*[-−–]\s*\)[ ]*(?=[,;.\n]|$)", ": negative"),
    (r"[ ]*\(\s*\+\s*\)[ ]*(?=[,;.\n]|$)", ": present"),
    (r"\(\s*[-−–]\s*\)", "no "),
    (r"\(\s*\+\s*\)", "positive for "),
    (rf"(?i)(?<=[a-z)]){_SIGNS}(?={_VALUE})", ": "),
    (r"(?<=:)[ ]*[-\u2013][ ]*(?=[,;.\n]|$)", " negative"),
    (r"(?<=:)[ ]*\+(?=[ ])", " present,"),
    (r"(?i)(?<=[a-z]{3}):[ ]*1(?=[ ]*(?:[,;\n]|\.(?!\d)|$))", ": present"),
    (r"(?i)(?<=[a-z]{3}):[ ]*0(?=[ ]*(?:[,;\n]|\.(?!\d)|$))", ": absent"),
    (r"(?i):[ ]*(?:y|true)(?=[ ]*(?:[.,;|\n]|$))", ": present"),
    (r"(?i):[ ]*(?:n|false)(?=[ ]*(?:[.,;|\n]|$))", ": absent"),
    (r"(: (?:absent|present))[ ]*\|[^\n]*", r"\1"),  # further cells of a row
)  # fmt: skip
_COMPILED = tuple((re.compile(pattern), by) for pattern, by in _RULES)
_QUOTED = re.compile(r"=(?:20|0A|0D|3D|C2=A0)")
_UNICODE = re.compile(r"\\u([0-9a-fA-F]{4})(?![0-9a-zA-Z]*\\)")


def plain_text(text: str) -> str:
    """Text of a report without markup, escapes and forms; see the head of this file."""
    if text.lstrip().startswith("{\\rtf"):
        text = _without_rtf(text)
    if re.search(r"(?m)^OBX\|", text):
        rows = [line.split("|") for line in text.splitlines() if line.startswith("OBX|")]
        text = "\n".join(row[5] for row in rows if len(row) > 5)
    if _QUOTED.search(text):
        text = re.sub(r"=\r?\n", "", text)
        text = re.sub(r"=([0-9A-F]{2})", lambda match: chr(int(match[1], 16)), text)
    text = re.sub(r"\\X((?:[0-9A-Fa-f]{2})+)\\", lambda f: bytes.fromhex(f[1]).decode("latin-1"), text)
    text = _UNICODE.sub(lambda match: chr(int(match[1], 16)), text)
    if "&" in text:
        text = html.unescape(html.unescape(text))
    text = unicodedata.normalize("NFC", text).replace("æ", "ae").replace("Æ", "Ae")
    for pattern, by in _COMPILED:
        text = pattern.sub(by, text)
    return text


def _without_rtf(text: str) -> str:
    text = re.sub(r"\{\\(?:\*|fonttbl|colortbl|stylesheet|info)[^{}]*(?:\{[^{}]*\}[^{}]*)*\}", "", text)
    text = re.sub(r"\\(?:par|line|row|sect)\b ?", "\n", text)
    text = re.sub(
        r"\\'([0-9a-fA-F]{2})", lambda match: bytes.fromhex(match[1]).decode("cp1252", "replace"), text
    )
    return re.sub(r"\\[a-zA-Z]+-?\d* ?|[{}]", "", text)
