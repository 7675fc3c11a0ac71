"""Tags of the DICOM elements read from a header.

Source: DICOM PS3.6 6 (data dictionary).
"""

from ich_mil.dicom.files.elements import CHARACTER_SET, tag_of

SOP_CLASS = tag_of("SOPClassUID")
SOP_UID = tag_of("SOPInstanceUID")
STUDY_UID = tag_of("StudyInstanceUID")
SERIES_UID = tag_of("SeriesInstanceUID")
PATIENT_ID = tag_of("PatientID")
MODALITY = tag_of("Modality")
IMAGE_TYPE = tag_of("ImageType")
NUMBER_OF_FRAMES = tag_of("NumberOfFrames")
SAMPLES = tag_of("SamplesPerPixel")
PHOTOMETRIC = tag_of("PhotometricInterpretation")
ROWS = tag_of("Rows")
COLUMNS = tag_of("Columns")
POSITION = tag_of("ImagePositionPatient")
ORIENTATION = tag_of("ImageOrientationPatient")
SPACING = tag_of("PixelSpacing")
THICKNESS = tag_of("SliceThickness")
INSTANCE = tag_of("InstanceNumber")
ACQUISITION = tag_of("AcquisitionNumber")
DESCRIPTION = tag_of("SeriesDescription")
KERNEL = tag_of("ConvolutionKernel")
BODY_PART = tag_of("BodyPartExamined")
LOSSY = tag_of("LossyImageCompression")
AGENT = tag_of("ContrastBolusAgent")
AGENT_SEQUENCE = tag_of("ContrastBolusAgentSequence")
AGENT_ROUTE = tag_of("ContrastBolusRoute")
AGENT_VOLUME = tag_of("ContrastBolusVolume")
BITS_ALLOCATED = tag_of("BitsAllocated")
BITS_STORED = tag_of("BitsStored")
SIGNED = tag_of("PixelRepresentation")
SLOPE = tag_of("RescaleSlope")
INTERCEPT = tag_of("RescaleIntercept")
RESCALE_TYPE = tag_of("RescaleType")
PADDING = tag_of("PixelPaddingValue")
PADDING_LIMIT = tag_of("PixelPaddingRangeLimit")

HEADER_TAGS = frozenset({CHARACTER_SET, *(tag for name, tag in globals().items() if name.isupper())})
"""All tags of this file, for `read_elements`."""
