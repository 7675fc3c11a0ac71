"""Body part, kernel and dual-energy images by the texts of scanners and sites."""

import re

import pytest

from ich_mil.study.series_words import Part, is_sharp_kernel, names_bone, part_of, spectral_kind

MONO, MATERIAL = "a virtual monoenergetic image", "a map of a material"
VOLTAGE, DUAL = "an image of one tube voltage of two", "an image of dual-energy CT"
PERFUSION = "a map of perfusion"


@pytest.mark.parametrize(
    ("image_type", "description", "kind"),
    [
        (r"DERIVED\SECONDARY\AXIAL\VMI", "Head 5.0", MONO),
        (r"DERIVED\PRIMARY\AXIAL\CT_SOM7 SPI MONO", "", MONO),
        (r"DERIVED\PRIMARY\AXIAL\MONO_70", "Hirn 3.0", MONO),
        (r"DERIVED\SECONDARY\REFORMATTED\GSI MONO", "GSI 65 keV", MONO),
        ("", "Mono 70 keV 1.0 Qr40", MONO),
        ("", "MonoE 55keV[HU] Head", MONO),
        ("", "Monoenergetic Plus 190 keV", MONO),
        ("", "Head 74keV ASIR", MONO),
        ("", "Brain VMI 66", MONO),
        ("", "CT Schädel MonoPlus 80", MONO),
        ("", "Monochromatic 70keV Head", MONO),
        ("", "SPECTRAL 40 keV brain", MONO),
        (r"DERIVED\PRIMARY\AXIAL\MAT_SPECIFIC", "", MATERIAL),
        (r"DERIVED\PRIMARY\AXIAL\ELECTRON_DENSITY", "", MATERIAL),
        (r"DERIVED\PRIMARY\AXIAL\EFF_ATOMIC_NUM", "head", MATERIAL),
        (r"DERIVED\PRIMARY\AXIAL\MAT_VALUE_BASED", "head", MATERIAL),
        ("", "Iodine(Water) Head", MATERIAL),
        ("", "Water(Iodine)", MATERIAL),
        ("", "Z Effective", MATERIAL),
        ("", "Electron Density [%EDW]", MATERIAL),
        ("", "VNC Head 3.0", MATERIAL),
        ("", "Sans contraste virtuel", MATERIAL),
        ("", "Basale virtuale", MATERIAL),
        ("", "Virtueel blanco", MATERIAL),
        ("", "E-Density", MATERIAL),
        ("", "LowkeV", MONO),
        ("", "VME 65", MONO),
        ("", "TAVG", PERFUSION),
        ("", "Virtual Unenhanced 5mm", MATERIAL),
        ("", "Virtuell nativ 3.0", MATERIAL),
        ("", "Iodine no Water [mg/ml]", MATERIAL),
        ("", "Jodkarte 5.0", MATERIAL),
        ("", "Calcium Suppression 50", MATERIAL),
        ("", "Iodine Density", MATERIAL),
        ("", "VNCa Head", MATERIAL),
        ("", "HAP(Water)", MATERIAL),
        ("", "Rho/Z maps", MATERIAL),
        ("", "Uric Acid pair", MATERIAL),
        ("", "Iodine Overlay 2.0", MATERIAL),
        ("", "DE Head 1.0 Q30f A 80kV", VOLTAGE),
        ("", "DE Head 1.0 Q30f B Sn140kV", VOLTAGE),
        ("", "DE Hirn Sn150kV", VOLTAGE),
        ("", "Dual Energy Head 100 kV", VOLTAGE),
        ("", "Head Sn140kV 1.0", VOLTAGE),
        ("", "DECT 80kVp", VOLTAGE),
        ("", "DE Head 1.0 Q30f M 0.4", ""),
        ("", "DE Head 3.0 Q40s F 0.5", ""),
        ("", "DE Head mixed 5.0", ""),
        ("", "Dual Energy Blended 0.5", ""),
        ("", "GSI Head Helical", DUAL),
        ("", "Dual-Energy Brain 5mm", DUAL),
        ("", "Spectral Head 3mm", DUAL),
        ("", "DE Kopf 3.0", DUAL),
        ("", "DualEnergy Schädel", DUAL),
        (r"ORIGINAL\PRIMARY\AXIAL\CT_SOM5 SEQ", "Head 5.0 H31s", ""),
        (r"ORIGINAL\PRIMARY\AXIAL", "Routine Head 120 kV", ""),
        ("", "Head 100kV Pediatric", ""),
        ("", "TC DE CRANEO SIMPLE", ""),
        ("", "CEREBRO DE RUTINA", ""),
        ("", "Crane sans inj", ""),
        (r"ORIGINAL\PRIMARY\AXIAL\HELIX", "Brain Helical", ""),
        ("", "Monophasic head", ""),
        (r"DERIVED\SECONDARY\AXIAL\AVERAGE", "5mm AX", ""),
        ("", "Code stroke head", ""),
        ("", "Demo head", ""),
        (r"ORIGINAL\PRIMARY\LOCALIZER", "Topogram", ""),
        ("", "Fat sat head", ""),
        ("", "Water cal phantom head", ""),
        (r"DERIVED\SECONDARY\AXIAL\CT_SOM7 PERF", "Neuro PBV", PERFUSION),
        (r"DERIVED\PRIMARY\AXIAL", "CBF RAPID", PERFUSION),
        ("", "Tmax", PERFUSION),
        (r"ORIGINAL\PRIMARY\AXIAL", "Head perfect 5mm", ""),
    ],
)
def test_spectral_kinds(image_type, description, kind):
    assert spectral_kind(image_type, description) == kind


PARTS = {
    Part.PART_OF_HEAD: [
        ["Sinus 1.0 H60s", "HEAD"],
        ["PNS cor", "HEAD"],
        ["NNH 2.0", "HEAD"],
        ["Orbits 2mm", "HEAD"],
        ["Facial bones", "HEAD"],
        ["Maxillofacial 0.625", "HEAD"],
        ["Mandible", "HEAD"],
        ["TMJ closed", "HEAD"],
        ["Temporal Bones L", "HEAD"],
        ["IAC 0.6", "HEAD"],
        ["Felsenbein rechts", "SKULL"],
        ["Inner Ear", "HEAD"],
        ["InnerEar 0.6 U90u", "HEAD"],
        ["senos paranasales", "CABEZA"],
        ["Macizo facial", "HEAD"],
        ["massif facial", "CRANE"],
        ["Rochers 0.6", "HEAD"],
        ["Mittelgesicht", "HEAD"],
        ["Gesichtsschädel 1.0", "HEAD"],
        ["Schädelbasis", "HEAD"],
        ["Skull base 1mm", "HEAD"],
        ["Base of skull", "HEAD"],
        ["Sella 1mm", "HEAD"],
        ["Dental", "HEAD"],
        ["DentaScan", "HEAD"],
        ["Nasal bones", "HEAD"],
        ["Orbita 2.0", "HEAD"],
        ["鼻窦 平扫", "HEAD"],
        ["眼眶", "HEAD"],
        ["颞骨 HRCT", "HEAD"],
        ["副鼻腔", "HEAD"],
        ["Пазухи носа", "HEAD"],
        ["Paranazal sinüs", "HEAD"],
        ["Mastoids", ""],
        ["", "SINUS"],
        ["", "ORBIT"],
        ["", "JAW"],
        ["", "TMJ"],
        ["", "FACE"],
        ["", "IAC"],
        ["Unterkiefer", "HEAD"],
        ["Seni paranasali", "TESTA"],
        ["Zygoma", "HEAD"],
        ["Petrous bone", "HEAD"],
        ["ATM abierta", "HEAD"],
    ],
    Part.OTHER: [
        ["C-Spine", "HEAD"],
        ["Cervical spine 2mm", "HEAD"],
        ["CSPINE", "HEAD"],
        ["HWS 2.0", "HEAD"],
        ["Rachis cervical", "HEAD"],
        ["Columna cervical", "HEAD"],
        ["颈椎", "HEAD"],
        ["Neck soft tissue", "HEAD"],
        ["Chest", "HEAD"],
        ["C Spine 2.0 B60s", "SKULL"],
        ["CERV SPINE", "HEAD"],
        ["c spine bone", "HEAD"],
    ],
    Part.HEAD: [
        ["Head 5.0", "CHEST"],
        ["Brain", "SINUS"],
        ["CT Head without contrast", "HEAD"],
        ["Kopf nativ 5.0", ""],
        ["Schädel 4.0", "CSPINE"],
        ["Cerebrum 4.8", ""],
        ["crâne SPC", ""],
        ["Crâneo simple", ""],
        ["头部平扫", "CHEST"],
        ["頭部", "NECK"],
        ["Голова", ""],
        ["Beyin BT", ""],
        ["Hoofd blanco", ""],
        ["Axial 5mm", "HEAD"],
        ["5mm STD", ""],
        ["POST FOSSA TO VERTEX", "HEAD"],
        ["Incidental", "HEAD"],
        ["Neuro 5.0 H40s", "CHEST"],
        ["Head to neck", ""],
        ["Vertex", "HEAD"],
        ["Base Vertex 5mm", "HEAD"],
        ["HEAD C-SPINE", "HEAD"],
        ["TETE SANS IV", ""],
        ["Cerebro", ""],
        ["Encefalo", "CHEST"],
    ],
    Part.HEAD_AND_PART: [
        ["Routine Face down head", "HEAD"],
        ["Brain + Orbits", "HEAD"],
        ["Head and Facial bones", ""],
        ["Head Sinus 2.0", "HEAD"],
        ["Kopf + NNH", ""],
        ["Head/IAC", "HEAD"],
    ],
}


OTHER_LANGUAGES = {
    Part.PART_OF_HEAD: """
        Nasennebenhöhlen, Nasennebenhoehlen, Augenhöhlen, Innenohr, Viszerokranium, Jochbein,
        Stirnhöhle, Gehörgang, Kleinhirnbrückenwinkel, SPN, Peñascos, Maxilar, Silla turca, Cara,
        Massiccio facciale, Rocche petrose, Orecchio, Splancnocranio, Mascellare, Seios paranasais,
        Ouvidos, Ossos temporais, ATMs, Rochedos, Sela túrcica, Selle turcique, OPN, MAX/FAC, FESS,
        Aangezicht, Rotsbeen, Órbitas, O\u0301rbitas, Mandíbula, Mastóides, Zatoki,
        Oczodoły, Base du crâne, Hipofiz, ППН, ΠΑΡΑΡΡΙΝΙΟΙ, 鞍区, Sivuontelot, Kjeve""",
    Part.OTHER: """
        Cuello, Collo, Pescoço, Cou, Charnière cervico-occipitale, Larynx, Odontoid, C1-C2, CWK""",
    Part.HEAD: """
        CCT nativ, Cráneo simple, Encéfalo s/c, TC cranio basale, Tête sans, 頭部単純, Głowa bez k,
        Crânio partes moles, CEREBRUM 5MM STND, Brain posterior fossa, BRAIN BOT, CT BRAIN HR, Brain BW,
        두개골 CT""",
}  # fmt: skip


@pytest.mark.parametrize(
    ("description", "part"),
    [(word, part) for part, words in OTHER_LANGUAGES.items() for word in re.split(r",\s+", words.strip())],
)
def test_parts_in_other_languages(description, part):
    assert part_of(description, "HEAD") == part_of(description.upper(), "HEAD") == part
    assert part != Part.HEAD or not names_bone(description)


BONE = """
    Crane OS, osseux, parties dures, filtre dur, Craneo hueso, óseo, ventana ósea, filtro duro, Encefalo osso,
    finestra ossea, janela óssea, Hoofd bot, scharf, CCT Knochen, 骨窗, Kostní"""


@pytest.mark.parametrize("description", re.split(r",\s+", BONE.strip()))
def test_descriptions_of_bone(description):
    assert names_bone(description)


@pytest.mark.parametrize(
    ("description", "body_part", "part"), [(*texts, part) for part, rows in PARTS.items() for texts in rows]
)
def test_description_outranks_body_part(description, body_part, part):
    assert part_of(description, body_part) == part


SHARP = r"""
    SHARP, H_SHARP_C, FC52, YC, Bl57, Bl57d, Bl57f\3, B70f, B50f, H60s, H70h, Hr59, Hr64h\2, U90u,
    Ur77, Br64, I70f\3, FC30, FC31, FC35, FC51, FC55, FC81, FC86, BONE, BONEPLUS, HD BONE, EDGE,
    LUNG, ULTRA, DETAIL, Bone (D), Y-Sharp (YA), YA, YB, YD, D, E, L, B_VSHARP_B, B_SHARP_D, BONE_B,
    Bone Sharp, High Resolution, Inner Ear, Sharp+, LUNG_A, Ultra High Res, B80s, T81s, Sb70, Hr68
"""
SOFT = r"""
    STANDARD, SOFT, STD+, SOFT+, A, B, C, UA, UB, UC, EB, FC21, FC26, FC27, FC64, FC67, FC68, FC13,
    FC03, FC08, H30s, H31s, H37s, H40s, H41s\2, H48s, J30s\3, Hr38, Hr40f, Hr44s\3, Hc40s, Qr36,
    Qr40, Br36, Br40d\3, I30f\2, B30f, B_SOFT_B, H_SOFT_A, H_STD_B, Brain Standard (UB), BRAIN,
    Smooth, ORGAN, Brain LCD, Br44, Hr36
"""


@pytest.mark.parametrize("kernel", re.split(r",\s+", SHARP.strip()))
def test_sharp_kernels(kernel):
    assert is_sharp_kernel(kernel)


@pytest.mark.parametrize("kernel", ["", *re.split(r",\s+", SOFT.strip())])
def test_soft_kernels(kernel):
    assert not is_sharp_kernel(kernel)
