"""The result as numbers with codes: a Comprehensive SR after TID 1500 (Measurement Report).

In: the result of one scan and its context. Out: one object with a measurement group for the scan and one for
each slice. A group names the algorithm and the images it was measured on: of a slice averaged from thin ones
all of them, of multi-frame files the frames. Its probability stands there four times: mean, standard
deviation and the ends of the central 95 % of the posterior samples, told apart by their derivation. Its
method says what is probable: intracranial hemorrhage.

A group with a Finding (121071, DCM) asserts it, and receivers count findings. Finding is optional in TID
1501: only the group of a scan that thresholds with a guarantee call positive has one, and no guarantee holds
for a slice. Comments say what the numbers are worth, how the decision was made, and what was supplied
because the sources lack it. A decision without a guarantee stands in a comment only.

Source: DICOM PS3.16 TID 1500, TID 1501, TID 300, TID 4019; PS3.3 A.35.3 (Comprehensive SR).
"""

from collections.abc import Sequence

from highdicom.sr import (
    AlgorithmIdentification,
    ComprehensiveSR,
    DeviceObserverIdentifyingAttributes,
    FindingSite,
    Measurement,
    MeasurementReport,
    MeasurementsAndQualitativeEvaluations,
    ObservationContext,
    ObserverContext,
    QualitativeEvaluation,
    RelationshipTypeValues,
    SourceImageForMeasurementGroup,
    TextContentItem,
    TrackingIdentifier,
)
from pydicom.dataset import Dataset
from pydicom.sr.codedict import codes as standard

from ich_mil.evaluate.triage import LOOK, POSITIVE
from ich_mil.predictions import NOTICE, ScanResult, SliceResult, is_promised
from ich_mil.report.dicom import codes
from ich_mil.report.dicom.context import SourceImage, StudyContext, frames_of
from ich_mil.report.dicom.identity import MANUFACTURER, Identity, Kind, reference
from ich_mil.report.dicom.values import paragraph
from ich_mil.report.words import problems, routine, unlike


def structured_report(
    scan: ScanResult, decided_by: str, context: StudyContext, identity: Identity
) -> ComprehensiveSR:
    """The report of one scan.

    Args:
        scan: its result.
        decided_by: in words, how the decision was made.
        context: its study.
        identity: of the results.
    """
    content = MeasurementReport(
        observation_context=ObservationContext(observer_device_context=device_context(identity)),
        procedure_reported=codes.CT_HEAD,
        imaging_measurements=[
            _scan_group(scan, decided_by, identity),
            *(_slice_group(one, context, identity, len(scan.slices)) for one in scan.slices),
        ],
        title=standard.DCM.ImagingMeasurementReport,
    )
    for comment in _comments(scan, decided_by, context):
        content[0].ContentSequence.append(
            TextContentItem(codes.COMMENT, paragraph(comment), RelationshipTypeValues.CONTAINS)
        )
    report = ComprehensiveSR(
        evidence=evidence(context),
        content=content[0],
        is_complete=True,
        coding_schemes=[codes.coding_scheme()],
        **identity.of_object(Kind.REPORT),
    )
    identity.finish(report, context)
    return report


def device_context(identity: Identity) -> ObserverContext:
    """The model as the device that observed."""
    model = identity.model
    return ObserverContext(
        observer_type=standard.DCM.Device,
        observer_identifying_attributes=DeviceObserverIdentifyingAttributes(
            uid=identity.device_uid,
            name=paragraph(model.name),
            manufacturer_name=MANUFACTURER,
            model_name=paragraph(model.name),
            serial_number=paragraph(model.weights),
        ),
    )


def evidence(context: StudyContext) -> list[Dataset]:
    """Each source image once, with what highdicom needs to refer to it."""
    return list({image.sop_uid: reference(context, image) for image in context.images}.values())


def _algorithm(identity: Identity) -> AlgorithmIdentification:
    model = identity.model
    parameters = [f"configuration {model.config}", f"trained on {model.trained_on}"]
    parameters += [f"calibration: {model.calibration}"] if model.calibration else []
    return AlgorithmIdentification(
        *_name_and_version(identity), parameters=[paragraph(one) for one in parameters]
    )


def _name_and_version(identity: Identity) -> tuple[str, str]:
    """Of the algorithm; the digest of the weights is part of the version."""
    model = identity.model
    return paragraph(model.name), paragraph(f"{model.version}, weights {model.weights}")


def _scan_group(
    scan: ScanResult, decided_by: str, identity: Identity
) -> MeasurementsAndQualitativeEvaluations:
    # what is coded may be acted upon by programs that read no comment
    promised = is_promised(decided_by)
    coded = promised or scan.decision == LOOK
    return MeasurementsAndQualitativeEvaluations(
        tracking_identifier=TrackingIdentifier(identity.uid("scan"), "scan"),
        finding_type=codes.HEMORRHAGE if promised and scan.decision == POSITIVE else None,
        finding_sites=[FindingSite(codes.HEAD)],
        algorithm_id=_algorithm(identity),
        measurements=_probability(scan),
        qualitative_evaluations=[QualitativeEvaluation(codes.DECISION, codes.DECISIONS[scan.decision])]
        if coded
        else None,
    )


def _slice_group(
    one: SliceResult, context: StudyContext, identity: Identity, n_slices: int
) -> MeasurementsAndQualitativeEvaluations:
    measurements = _probability(one)
    if one.scan_without is not None:
        measurements.append(Measurement(codes.SCAN_WITHOUT, one.scan_without, codes.NO_UNITS))
    source = context.slices[one.slice]
    return MeasurementsAndQualitativeEvaluations(
        tracking_identifier=TrackingIdentifier(
            identity.uid("slice", str(one.slice)),
            paragraph(f"slice {one.slice + 1} of {n_slices} from below ({source.original})"),
        ),
        algorithm_id=AlgorithmIdentification(*_name_and_version(identity)),
        measurements=measurements,
        source_images=_references(source.images),
    )


def _probability(of: ScanResult | SliceResult) -> list[Measurement]:
    low, high = of.interval_95
    values = ((of.probability, codes.MEAN), (of.std, codes.STD), (low, codes.LOW), (high, codes.HIGH))
    return [
        Measurement(
            codes.PROBABILITY, float(value), codes.NO_UNITS, derivation=derivation, method=codes.OF_HEMORRHAGE
        )
        for value, derivation in values
    ]


def _references(images: Sequence[SourceImage]) -> list[SourceImageForMeasurementGroup]:
    """One reference to each file, with its frames."""
    return [
        SourceImageForMeasurementGroup(*file, frames or None) for file, frames in frames_of(images).items()
    ]


def _comments(scan: ScanResult, decided_by: str, context: StudyContext) -> list[str]:
    """What the numbers are worth and what they come from, one text each."""
    comments = [f"{NOTICE} The original images are unchanged: look at the full study."]
    comments += [warning] if (warning := unlike(scan)) else []
    comments.append(f"Decision '{scan.decision}': {decided_by.rstrip('.')}.")
    comments += [
        f"Run of neighbouring slices: {run.first + 1} to {run.last + 1} from below."
        + ("" if run.scan_without is None else f" The scan's probability without it: {run.scan_without:.6f}.")
        for run in scan.runs
    ]
    if told := [*problems(scan.ledger), *routine(scan.ledger)]:
        comments.append(f"Input: {'; '.join(told)}.")
    return [*comments, *context.notes]
