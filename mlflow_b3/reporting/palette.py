"""The colours of reports and charts, for light and dark screens."""

#: Okabe and Ito's colours, which people with any colour vision tell apart, darkened or lightened
#: where they would be too faint on their background.
LIGHT = {
    "paper": "#ffffff",
    "panel": "#f3f5f8",
    "ink": "#1b1f24",
    "muted": "#57606a",
    "grid": "#d5dbe1",
    "edge": "#8a939c",
    "blue": "#0072b2",
    "orange": "#c45500",
    "green": "#00795a",
    "red": "#b3261e",
}
DARK = {
    "paper": "#14181d",
    "panel": "#1f252c",
    "ink": "#e8edf2",
    "muted": "#a9b4bf",
    "grid": "#39424c",
    "edge": "#7d8894",
    "blue": "#56b4e9",
    "orange": "#e69f00",
    "green": "#2fbf94",
    "red": "#ff8a80",
}
TEXT = ("ink", "muted")
MARKS = ("blue", "orange", "green", "red", "edge")


def _variables(colours: dict[str, str]) -> str:
    return ":root{" + ";".join(f"--{name}:{colour}" for name, colour in colours.items()) + "}"


#: Paper is light whatever the screen.
COLOURS = (
    f"{_variables(LIGHT)}\n"
    f"@media (prefers-color-scheme:dark){{{_variables(DARK)}}}\n"
    f"@media print{{{_variables(LIGHT)}}}\n"
)
