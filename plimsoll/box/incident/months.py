"""Names of months as strftime's %b writes them, which is how syslog, journalctl and `dmesg -T` date a line. Pure."""

# ruff: noqa: RUF001  # these are the letters that those languages have
_NAMES = (
    "jan janv ene gen ian oca sty led tammi jaan янв січ ιαν sau",
    "feb févr fév fev febr şub lut úno helmi veebr фев лют φεβ vas",
    "mar mär mars mrt mrz márc març maalis märts bře мар бер μαρ kov",
    "apr avr abr ápr nis kwi dub huhti апр кві απρ bal",
    "may mai mag mei maj máj maio maig touko kvě май мая тра μαΐ geg",
    "jun juin juni giu jún juny haz cze čen kesä iun июн чер ιουν bir",
    "jul juil juli lug júl tem lip čec heinä iul июл лип ιουλ lie",
    "aug août aoû ago ağu ag avg sie srp elo авг сер αυγ rgp",
    "sep sept set szept eyl wrz zář syys сен вер σεπ rgs",
    "oct okt ott out eki paź říj loka окт жов οκτ spa",
    "nov kas lis marras noi ноя лис νοε lap",
    "dec déc dez dic des dets ara gru pro joulu дек гру δεκ grd",
)
SHORT = 3
MONTHS = {name: number for number, names in enumerate(_NAMES, 1) for name in names.split()}


def month_number(name: str) -> int | None:
    """Return 1 to 12 for `Sep`, `mars`, `août`, `Okt.`, `9月`; None for what is no month."""
    plain = name.casefold().rstrip(".")
    if plain[:-1].isascii() and plain[:-1].isdigit() and plain[-1:] in ("月", "월"):
        number = int(plain[:-1])
        return number if 1 <= number <= 12 else None  # noqa: PLR2004  # a year has twelve
    # some languages do not shorten a short name (avril), and some people write names out
    return MONTHS.get(plain) or (MONTHS.get(plain[:4]) or MONTHS.get(plain[:3]) if len(plain) > SHORT else None)
