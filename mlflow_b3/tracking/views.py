"""The view "b3 audits" of an experiment in MLflow's UI, and links to it.

MLflow's runs table shows no metrics until columns are chosen, and hides child runs. A view that is
stored with the experiment has the audits ranked by e0 with their columns, and their curves in one
chart.
"""

import base64
import json
import time
import zlib
from typing import Any
from urllib.parse import quote

KEY = "b3"
TAG = f"mlflow.sharedViewState.{KEY}"
NAME = "b3 audits"
FILTER = "tags.`b3.status` = 'current'"
COLUMNS = ("e0", "e0_low", "e0_high", "loco", "iid", "inflation")
SETTINGS = ("loss", "claim")
LINES = ("b3_curve/loss", "b3_curve/sensitivity")
BARS = ("b3/e0", "b3/loco", "b3/iid")
MOST_RUNS = 20
#: What MLflow 3.10 must find in a view and does not fill in by itself.
DEFAULTS: dict[str, Any] = {
    "startTime": "ALL",
    "lifecycleFilter": "Active",
    "datasetsFilter": [],
    "modelVersionFilter": "All Runs",
    "columnWidths": {},
    "runsExpanded": {},
    "runsPinned": [],
    "runsHidden": [],
    "runsVisibilityMap": {},
    "viewMaximized": False,
    "runListHidden": False,
    "useGroupedValuesInCharts": True,
    "hideEmptyCharts": True,
    "groupBy": None,
    "groupsExpanded": {},
    "autoRefreshEnabled": True,
    "globalLineChartConfig": {
        "xAxisKey": "step",
        "lineSmoothness": 0,
        "selectedXAxisMetricKey": "",
    },
}


def add_view(client: Any, run_id: str) -> None:
    """Store the view with the experiment of a run, where none of its name is; it may be changed."""
    experiment_id = client.get_run(run_id).info.experiment_id
    if TAG in client.get_experiment(experiment_id).tags:
        return
    now = int(time.time() * 1000)
    state = _state()
    packed = base64.b64encode(zlib.compress(json.dumps(state).encode())).decode()
    named = {"name": NAME, "createdAt": now, "updatedAt": now, "state": f"deflate;{packed}"}
    # older versions of MLflow know no names, and read the state itself
    client.set_experiment_tag(experiment_id, TAG, json.dumps({**state, **named}))


def view_links(experiment_id: str) -> dict[str, str]:
    """Return where the view is, by what it shows, relative to the address of the UI."""
    page = f"#/experiments/{experiment_id}/runs?viewStateShareKey={KEY}"
    return {"table": page, "charts": f"{page}&compareRunsMode=CHART"}


def compare_link(run_ids: list[str], experiment_ids: list[str]) -> str:
    """Return where MLflow compares some runs."""
    runs, experiments = (quote(json.dumps(ids)) for ids in (run_ids, experiment_ids))
    return f"#/compare-runs?runs={runs}&experiments={experiments}"


def _state() -> dict[str, Any]:
    columns = [f"metrics.`b3/{name}`" for name in COLUMNS]
    columns += [f"params.`b3/{name}`" for name in SETTINGS]
    charts = [_line(number, key) for number, key in enumerate(LINES)]
    charts += [_bar(number + len(LINES), key) for number, key in enumerate(BARS)]
    return {
        **DEFAULTS,
        "searchFilter": FILTER,
        # sorted by creation MLflow would nest audits under their parents and not draw them
        "orderByKey": columns[0],
        "orderByAsc": True,
        "selectedColumns": columns,
        "columnOrder": columns,
        "runsHiddenMode": f"FIRST_{MOST_RUNS}_RUNS",
        "isAccordionReordered": True,
        "compareRunCharts": charts,
        "compareRunSections": [
            _section("b3-curves", "b3_curve"),
            _section("b3-scores", "b3 scores"),
            _section("b3-rest", "b3", shown=False),
        ],
    }


def _chart(number: int, key: str, kind: str, section: str) -> dict[str, Any]:
    return {
        "uuid": f"b3-{number}",
        "type": kind,
        "runsCountToCompare": MOST_RUNS,
        "metricSectionId": section,
        "deleted": False,
        "isGenerated": False,
        "metricKey": key,
    }


def _bar(number: int, key: str) -> dict[str, Any]:
    return _chart(number, key, "BAR", "b3-scores")


def _line(number: int, key: str) -> dict[str, Any]:
    return {
        **_chart(number, key, "LINE", "b3-curves"),
        "selectedMetricKeys": [key],
        "lineSmoothness": 0,
        "xAxisScaleType": "linear",
        "scaleType": "linear",
        "range": {},
        "xAxisKey": "step",
        "selectedXAxisMetricKey": "",
        "yAxisKey": "metric",
        "yAxisExpressions": [],
        "ignoreOutliers": False,
        "useGlobalXaxisKey": True,
        "useGlobalLineSmoothing": True,
    }


def _section(uuid: str, name: str, *, shown: bool = True) -> dict[str, Any]:
    return {
        "uuid": uuid,
        "name": name,
        "display": shown,
        "isReordered": True,
        "deleted": False,
        "isGenerated": False,
    }
