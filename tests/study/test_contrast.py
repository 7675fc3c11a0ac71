"""What descriptions of many languages say of contrast, and the phrases of a site."""

import csv
from pathlib import Path

import pytest

import ich_mil.study
from ich_mil.errors import ConfigError
from ich_mil.study.contrast import contrast_of, read_site_phrases

PLAIN = """
    CT HEAD WITHOUT INTRAVENOUS CONTRAST | HEAD W/OUT CONTRAST | CRANIO S/CONTRASTE | GLOWA BEZ KONTRASTU
    Schedel zonder contrast | CRANE NON INJECTE | No I.V. contrast | w.o. contrast | CCT o.KM | KONTRASTSIZ
    utan kontrast | uden kontrast | uten kontrast | sans produit de contraste | CE (-) | 头部平扫
"""
"""Reported as told for contrast."""
CONTRAST = "头部增强 | Голова с контрастом | CRANE VEINEUX | HEAD W CON"
"""Reported as told for plain."""
EVENTS = "HEAD 5mm POST STROKE | 24h delayed f/u | Post Thrombectomy"

# written before the table was, and after it: some of these made rows
MORE_PLAIN = """
    Kopf ohne i.v. KM | CCT nativ 5.0 H30s | Cerebro sin medio de contraste | TC cráneo simple | CRANEO S/C
    TC cranio basale | Encefalo senza mezzo di contrasto | TC crânio sem contraste venoso
    Crâne sans injection de PDC | TDM CRANE IV- | CT hersenen blanco | Hjärna utan iv kontrast
    CT cerebrum uden i.v. kontrast | Hode uten kontrast | Pään TT ilman varjoainetta
    TK glowy bez podania srodka kontrastowego | TK głowy b/k | Mozek nativně | koponya natív
    koponya kontrasztanyag nélkül | Beyin BT kontrast yok | Craniu fara contrast nativ
    КТ головного мозга без в/в контрастирования | Мозг бесконтрастное | ΕΓΚΕΦΑΛΟΣ ΧΩΡΙΣ ΣΚΙΑΓΡΑΦΙΚΟ
    頭部単純CT | 頭部 造影なし | 頭部非造影 | 颅脑CT 无增强 | 顱腦 無顯影劑 | 뇌 CT 조영제 없이
    비조영 두부 | 뇌 조영전 | رأس بدون صبغة | ראש ללא חומר ניגוד | HEAD NO CONTRAST GIVEN | Contrast: none
    HEAD CONTRAST NOT GIVEN | CT HEAD WO CON 5MM | NC HEAD | NECT 3mm | Without intravenous or oral contrast
    HEAD C- | CTNONCONTRAST | CTA HEAD W/O CONTRAST | Kontrast: nein | Contraste : non | KM (-)
    IV contrast − | Head 2.0 H31s Axial Plain | HEAD STD WO IVCON | BRAIN WITHOUT | CT BRAIN W/O CM
    PRE-CONTRAST 5/5 | Routine Brain -C | SIN CONTRASTE 5 MM | craneo sin ctte | TAC CRANEO S/C 3mm
    crane s/inj | Encéphale C- | NCCT Head 0.625 | Neurocranium nativ 4 mm | Schädel KM-frei
    Schädel spiral ohne KM 1.0 J40s | testa smdc | Encefalo diretta | CRANIO SEM CTE | Cranio s/ contr
    głowa bez śr. kontr. | mozek bez k.l. | Endokranijum nativno | endokranij bez kontrasta
    Головной мозг 5.0 нативное | без в/в | мозок без контрасту | 头颅CT平扫 | 颅脑平扫 5mm | 頭部 無對比劑
    頭部CT 単純 | 造影(-) | 頭部 造影剤使用なし | 頭部 プレーン | 뇌 비조영 | Brain CT non-enhance
    Brain CT noncontrast | kafa kontrastsız | kontrast öncesi | Skalle utan kontr | Hjerne u/kontrast
    Head IV Contrast No | Contrast = none | CONTRAST NO | Head NON-CONTRAST 5mm Axial Brain Post Fall
    zonder IV | NON CONTRASTED | No contrast administered | not contrast enhanced
    without the use of contrast | HEAD W/O IV CONT
"""
MORE_CONTRAST = """
    CCT mit i.v. KM | Schädel nach KM-Gabe | Kopf Kontrastmittelgabe | CRANEO CON CONTRASTE IV
    TAC cerebro c/cte | Encefalo dopo m.d.c. | TC CRANIO C/ CONTRASTE | Crâne après injection
    Scanner cérébral avec injection | CT hersenen met contrast | CT hjerne med kontrast | pää varjoaineella
    Głowa z kontrastem | CT mozku s kontrastní látkou | koponya kontrasztanyaggal | Kontrastlı beyin BT
    Головной мозг с КУ | Череп с в/в контрастом | 頭部造影 | 頭部造影CT | 颅脑CT平扫+增强 | 头颅增强扫描
    顱腦 動脈期 | 뇌 CT 조영증강 | رأس مع صبغة | ראש עם חומר ניגוד | HEAD W/ CON | POST CON 5mm | CECT
    Non-ionic contrast 100 | con y sin contraste | mit und ohne KM | avec et sans injection
    с и без контраста | z i bez kontrastu | med og uten kontrast | HEAD DELAYED 5 MIN
    Pre and post contrast | KM (+) | Contrast-enhanced head | HEAD 5mm +C | Craneo sin y con contraste
    HEAD C-/C+ | CON CONTRASTE | cerebro simple y contrastado | CRANEO C/C VENOSA | TDM cérébral IV+
    Tete AVEC IV | CCT KM venös 1.0 | CT Hirn mit KM arteriell | Kopf kontrastmittelunterstützt | testa cmdc
    CRANIO SENZA E CON MDC | crânio pós contraste | TK głowy faza tętnicza | mozek po aplikaci k.l.
    glava sa kontrastom | ГМ с в/в усилением | Голова артериальная фаза | 脑CTA | 头部CT增强延迟期
    腦部 有顯影劑 | 造影(+) | 造影CT 門脈相 | 造影後 | 뇌 조영 | Brain CT(enhance)
    IV kontrastlı kranial BT | hjerne m kontrast | m/kontrast | HEAD POST | POST INFUSION | LATE ARTERIAL
    DELAYED | DELAYED VENOUS | Head C + | hersenen zonder/met contrast | bez i po kontrastu | mit
    CT HEAD(CONTRAST) | W/O&W | W/CONT | HEAD CONT | IV CONTR | Virtual Non-Contrast | VIRTUAL_UNENHANCED
    HEAD WWO | Circle of Willis | Carotid 1mm | PreMonitoring | CT 4cc sec 150cc D3D on | AX MIP 10mm | MinIP
    PERFUSION 5mm | HEAD W-2 | HEAD 80 ML | CRANIO C/C | Subtraction 1.0 | Head without & with STD
"""
MORE_NOTHING = """
    Post craniotomy day 2 | POST CLOT RETRIEVAL 24H | Delayed 6 hr f/u | s/p fall | Postoperative head
    IMAGE NO 5 | Axial Brain 5.0 H30s | HEAD W 80 L 40 | Kopf Weichteil 5.0 | Crâne os | Тонкие срезы
    頭部 5mm | Head with 3D | 单纯头颅 | Post EVD placement | POST COIL | POST-OP DAY 1 | post tPA 24hr
    Post Resection | 24 HR POST TNK | Delayed 4h repeat head | 6H DELAY | delayed followup | HEAD WOW
"""
OTHER_LANGUAGES = {
    "Kepala dengan kontras": True,
    "galvas smadzenes bez kontrastvielas": False,
    "Head qwert contrast": True,
    "contrast qwert": True,
    "HEAD POST QWERT": None,
    "მუცელი": None,
    "頭蓋霧": None,
}
"""Not all of these words are in the list."""


def listed(text):
    return [one.strip() for line in text.strip().splitlines() for one in line.split(" | ") if one.strip()]


@pytest.mark.parametrize(
    ("description", "contrast"),
    [
        *((one, False) for one in listed(PLAIN + MORE_PLAIN)),
        *((one, True) for one in listed(CONTRAST + MORE_CONTRAST)),
        *((one, None) for one in listed(EVENTS + MORE_NOTHING)),
        *OTHER_LANGUAGES.items(),
    ],
)
def test_contrast_of_a_description(description, contrast):
    assert contrast_of(description) is contrast
    assert contrast_of(description.upper()) is contrast
    assert contrast_of(description.replace(" ", "_")) is contrast


def test_a_site_adds_phrases_and_outranks_the_list(tmp_path):
    path = tmp_path / "words.csv"
    path.write_text("phrase,meaning\nqwert,plain\nPROTO 7,contrast\nnativ,other\nC+ (x),plain\n", "utf-8")
    site = read_site_phrases(path)
    assert contrast_of("Head qwert", site) is False
    assert contrast_of("proto_7", site) is True
    assert contrast_of("Kopf nativ", site) is None
    assert contrast_of("Kopf nativ") is False
    assert contrast_of("HEAD C+ (X)", site) is False
    assert read_site_phrases(None) == ()


@pytest.mark.parametrize(
    "content",
    [b"phrase\nqwert\n", b"phrase,meaning\nqwert,without\n", b"phrase,meaning\n!,plain\n", b"\xff,\n"],
)
def test_phrases_that_cannot_be_used(tmp_path, content):
    path = tmp_path / "words.csv"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"words\.csv"):
        read_site_phrases(path)


def test_the_list_has_at_most_150_patterns():
    with (Path(ich_mil.study.__path__[0]) / "contrast_words.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len({row["pattern"] for row in rows}) == len(rows) <= 150
    assert {row["meaning"] for row in rows} == {
        *("other", "plain", "contrast", "phase", "agent", "no", "absent", "with")
    }
