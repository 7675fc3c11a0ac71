"""Run the whole pipeline from a YAML file: prepare, train, fit the head, validate, report.

python train.py --config configs/demo.yaml
python train.py --config configs/demo.yaml --head.beta 1.5 --out checkpoints/other
python train.py --config configs/demo.yaml --resume
"""

import sys

from ich_mil.cli import train_main

if __name__ == "__main__":
    sys.exit(train_main(sys.argv[1:]))
