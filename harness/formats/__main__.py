"""Write the schema files again: `python -m harness.formats`."""

from pathlib import Path

from harness.formats.generate import write

if __name__ == "__main__":
    for file in write(Path(__file__).parent):
        print(file)
