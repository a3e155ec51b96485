"""Heart disease with up to 5,000 refits a level, against the published errors (AISTATS 2019)."""

from experiment import Outcome, Request
from heart import WHERE, load
from refits import by_refits


def run(request: Request) -> Outcome:
    path = request.file("UCI's Heart Disease data (heart+disease.zip, or its folder)", WHERE)
    sizes = (50, 100, 200, 500, 1000, 2000, 5000)
    return by_refits(load(path, fits=50), request, chunks=20, sizes=sizes, published=1000)
