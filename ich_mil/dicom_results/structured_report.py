"""Comprehensive SR of a result: coded measurements after TID 1500 (Measurement Report).

One measurement group for the scan and one for each slice, which refers to its source images. A group holds
four probabilities, distinguished by their derivation: mean, standard deviation, and the ends of the central
95 % of the posterior samples. The measurement method names the event, intracranial hemorrhage.

A Finding (121071, DCM) in a group asserts the finding, and receivers count findings. Only the group of a scan
that guaranteed thresholds classify as positive has one; no guarantee holds for a slice. Comments contain the
research notice, the decision rule, problems of the input, and the values supplied because the sources lack
them. A positive or negative decision without a guarantee is in a comment only.

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

from ich_mil.dicom_results import codes
from ich_mil.dicom_results.context import SourceImage, StudyContext, frames_of
from ich_mil.dicom_results.identity import MANUFACTURER, Identity, Kind, reference
from ich_mil.dicom_results.values import paragraph
from ich_mil.ledger import LOOK, NOTICE, POSITIVE, has_guarantee, problems, routine
from ich_mil.model.predictions import ScanPrediction, SliceResult
from ich_mil.pages.words import kinds, unlike


def structured_report(
    scan: ScanPrediction,
    decided_by: str,
    context: StudyContext,
    identity: Identity,
    older: Sequence[Dataset] = (),
) -> ComprehensiveSR:
    """Create the structured report of one scan; `older` are reports of the study that it replaces."""
    content = MeasurementReport(
        observation_context=ObservationContext(observer_device_context=device_context(identity)),
        procedure_reported=codes.CT_HEAD,
        imaging_measurements=[
            _scan_group(scan, decided_by, identity),
            *(_slice_group(slice_, context, identity, len(scan.slices)) for slice_ in scan.slices),
        ],
        title=standard.DCM.ImagingMeasurementReport,
    )
    for comment in _comments(scan, decided_by, context):
        content[0].ContentSequence.append(
            TextContentItem(codes.COMMENT, paragraph(comment), RelationshipTypeValues.CONTAINS)
        )
    arguments = identity.of_object(Kind.REPORT)
    # an object that changes no result, such as a dose report, leads to the same report once more
    older = [dataset for dataset in older if dataset.SOPInstanceUID != arguments["sop_instance_uid"]]
    report = ComprehensiveSR(
        evidence=_evidence(context),
        content=content[0],
        is_complete=True,
        coding_schemes=[codes.coding_scheme()],
        previous_versions=older or None,
        **arguments,
    )
    identity.finish(report, context)
    return report


def device_context(identity: Identity) -> ObserverContext:
    """Observer context that identifies the model as a device."""
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


def _evidence(context: StudyContext) -> list[Dataset]:
    """References to the source images, one for each file, for highdicom's `evidence` argument."""
    return list({image.sop_uid: reference(context, image) for image in context.images}.values())


def _algorithm(identity: Identity) -> AlgorithmIdentification:
    model = identity.model
    parameters = [f"configuration {model.config}", f"trained on {model.trained_on}"]
    parameters += [f"calibration: {model.calibration}"] if model.calibration else []
    return AlgorithmIdentification(
        *_name_and_version(identity), parameters=[paragraph(text) for text in parameters]
    )


def _name_and_version(identity: Identity) -> tuple[str, str]:
    """Name and version of the algorithm; the version includes the digest of the weights."""
    model = identity.model
    return paragraph(model.name), paragraph(f"{model.version}, weights {model.weights}")


def _scan_group(
    scan: ScanPrediction, decided_by: str, identity: Identity
) -> MeasurementsAndQualitativeEvaluations:
    # programs may act on codes without reading the comments: code guaranteed decisions and 'look' only
    promised = has_guarantee(decided_by)
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
    slice_: SliceResult, context: StudyContext, identity: Identity, n_slices: int
) -> MeasurementsAndQualitativeEvaluations:
    measurements = _probability(slice_)
    if slice_.scan_without is not None:
        measurements.append(Measurement(codes.SCAN_WITHOUT, slice_.scan_without, codes.NO_UNITS))
    source = context.slices[slice_.slice]
    return MeasurementsAndQualitativeEvaluations(
        tracking_identifier=TrackingIdentifier(
            identity.uid("slice", str(slice_.slice)),
            paragraph(f"slice {slice_.slice + 1} of {n_slices} from below ({source.original})"),
        ),
        algorithm_id=AlgorithmIdentification(*_name_and_version(identity)),
        measurements=measurements,
        source_images=_references(source.images),
    )


def _probability(of: ScanPrediction | SliceResult) -> list[Measurement]:
    low, high = of.interval_95
    values = ((of.probability, codes.MEAN), (of.std, codes.STD), (low, codes.LOW), (high, codes.HIGH))
    return [
        Measurement(
            codes.PROBABILITY, float(value), codes.NO_UNITS, derivation=derivation, method=codes.OF_HEMORRHAGE
        )
        for value, derivation in values
    ]


def _references(images: Sequence[SourceImage]) -> list[SourceImageForMeasurementGroup]:
    return [
        SourceImageForMeasurementGroup(*file, frames or None) for file, frames in frames_of(images).items()
    ]


def _comments(scan: ScanPrediction, decided_by: str, context: StudyContext) -> list[str]:
    comments = [f"{NOTICE} The original images are unchanged: look at the full study."]
    comments += [warning] if (warning := unlike(scan)) else []
    comments.append(f"Decision '{scan.decision}': {decided_by.rstrip('.')}.")
    comments += [
        f"Run of neighbouring slices: {run.first + 1} to {run.last + 1} from below."
        + ("" if run.scan_without is None else f" The scan's probability without it: {run.scan_without:.6f}.")
        for run in scan.runs
    ]
    if scan.kinds:
        comments.append(f"Kind of bleed, if there is one. {'; '.join(kinds(scan))}.")
    if lines := [*problems(scan.ledger), *routine(scan.ledger)]:
        comments.append(f"Input: {'; '.join(lines)}.")
    return [*comments, *context.notes]
