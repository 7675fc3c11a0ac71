# make demo | make headct-base | make test | make test-nightly | make test-gpu | make test-services | make install
# make lint | make docs | make clean
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
export ICH_MIL_DATA ?= $(abspath ../shared/data)

.PHONY: install demo headct-base test test-nightly test-gpu test-services lint docs clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "ich_mil needs Python 3.11 or newer; name one with 'make PYTHON=python3.12 ...'" >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV) || { echo "No venv module: on Debian run 'apt-get install python3-venv', then the same make command again" >&2; exit 2; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(STAMP)

demo: $(STAMP)
	rm -rf data/demo checkpoints/demo
	$(BIN)/python -m ich_mil.phantoms.data_sets data/demo --studies-a 240 --studies-b 40 --size 128
	$(BIN)/python train.py --config configs/demo.yaml

# the bundled model, from public pictures (docs/data.md): an hour on two idle cores
headct-base: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[headct]'
	$(BIN)/python $(ICH_MIL_DATA)/../tools/ctich_to_dicom.py $(ICH_MIL_DATA)/ctich data/ctich/rsna --layout rsna
	mkdir -p data/rsna_png data/rsna_boxes
	grep -v -e ID_a0f1da3ce -e ID_ad5fcf757 $(ICH_MIL_DATA)/rsna_png/labels.csv > data/rsna_png/labels.csv  # in rsna_scans
	grep -E '^slice|,boxes\b' $(ICH_MIL_DATA)/rsna_more/labels.csv > data/rsna_boxes/labels.csv
	cp $(ICH_MIL_DATA)/rsna_more/boxes.csv data/rsna_boxes
	tail -n +2 data/rsna_png/labels.csv | cut -d, -f1 | xargs -I{} ln -sf $(ICH_MIL_DATA)/rsna_png/{}.png data/rsna_png
	tail -n +2 data/rsna_boxes/labels.csv | cut -d, -f1 | xargs -I{} ln -sf $(ICH_MIL_DATA)/rsna_more/{}.jpg data/rsna_boxes
	$(BIN)/python train.py --config configs/headct_base.yaml
	$(BIN)/python -m research.benchmarks.headct.bundle checkpoints/headct_base checkpoints/headct-base

# a process per core, with one thread each
test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile -m "not slow and not services and not browser"

# whole runs, killed processes, torchrun, simulations: five minutes
test-nightly: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto -m slow

# on a machine with a GPU; fails where no GPU test was executed
test-gpu: $(STAMP)
	$(BIN)/python -m pytest -m gpu

# a real archive, DICOM validators and a browser: Debian packages, which only root can install
test-services: $(STAMP)
	apt-get update -qq && apt-get install -y -qq --no-install-recommends orthanc orthanc-dicomweb dcmtk dicom3tools chromium chromium-driver
	$(BIN)/python -m pytest -m 'services or browser' tests/serve tests/pages tests/dicom_results

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# the site, into site/: executes the tutorials (about two minutes), fails on a warning or a dead link
docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	PATH="$(abspath $(BIN)):$$PATH" NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	$(BIN)/python -m tests.site_links site

clean:
	rm -rf $(VENV) data/demo checkpoints/demo site
