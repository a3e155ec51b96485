"""The census with up to 10,000 refits a level, against the published errors (AISTATS 2019)."""

from census import WHERE, load
from experiment import Outcome, Request
from refits import by_refits


def run(request: Request) -> Outcome:
    path = request.file("UCI's Adult data (adult.zip or adult.data)", WHERE)
    sizes = (50, 100, 200, 500, 1000, 2000, 5000, 10_000)
    return by_refits(load(path, fits=50), request, chunks=40, sizes=sizes, published=10_000)
