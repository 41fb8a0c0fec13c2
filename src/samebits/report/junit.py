"""junit.xml for CI systems: one suite per recipe, one case for the verdict, one per gate, one per comparison.

Nothing but `pass` is ever green: `fail` is a failure; `invalid` and `inconclusive` are errors, for a skipped case
counts as success in most systems. A comparison with a planted fault is no case of its own (there a difference is the
good outcome); its gate speaks for it.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence

from samebits.compare.results import Comparison, GateResult
from samebits.fingerprint.format import ranks_text
from samebits.gates.judgement import Judgement
from samebits.overhead.results import Cost
from samebits.report import figures
from samebits.report.costs import label, measured_text
from samebits.report.words import (
    counted,
    is_measured,
    is_planted,
    moment_text,
    one_line,
    outcome,
    place_text,
    printable,
    scope_text,
)
from samebits.spec.verdicts import Verdict

_ELEMENT: dict[Verdict, str] = {"fail": "failure", "invalid": "error", "inconclusive": "error"}


def junit_xml(judgement: Judgement) -> str:
    """The whole file. The same judgement gives the same text: it holds no time of day."""
    suite = ET.Element("testsuite", name=one_line(f"samebits.{judgement.recipe}"))
    _add_properties(suite, judgement)
    summary = [judgement.headline, f"scope: {judgement.scope}"]
    _add_case(suite, judgement.recipe, "verdict", judgement.verdict, summary)
    for gate in judgement.gates:
        _add_gate(suite, judgement, gate)
    counts = {
        "tests": str(len(suite.findall("testcase"))),
        "failures": str(len(suite.findall("testcase/failure"))),
        "errors": str(len(suite.findall("testcase/error"))),
    }
    suite.attrib.update(counts, skipped="0", time="0")
    root = ET.Element("testsuites", {"name": "samebits", **counts, "time": "0"})
    root.append(suite)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _add_properties(suite: ET.Element, judgement: Judgement) -> None:
    facts = {"samebits": judgement.samebits, "verdict": judgement.verdict, "scope": judgement.scope}
    facts |= {f"run fingerprint {arm.arm}": arm.run_fingerprint or "none" for arm in judgement.arms}
    facts |= {f"nodes {arm.arm}": place_text(arm) or "unknown" for arm in judgement.arms}
    facts |= _cost_facts(judgement.costs)
    properties = ET.SubElement(suite, "properties")
    for name, value in facts.items():
        ET.SubElement(properties, "property", name=one_line(name), value=one_line(value))


def _cost_facts(costs: Sequence[Cost]) -> dict[str, str]:
    """Percent of a step."""
    facts = {}
    for cost in costs:
        for effect in cost.findings.effects if cost.findings else ():
            name = f"cost {cost.experiment} {label(effect)}"
            facts[name] = f"{effect.median.percent:.2f}"
            if interval := effect.median.interval:
                facts |= {f"{name} low": f"{interval.low:.2f}", f"{name} high": f"{interval.high:.2f}"}
    return facts


def _add_gate(suite: ET.Element, judgement: Judgement, gate: GateResult) -> None:
    recipe = judgement.recipe
    found = [f"{_arms(comparison)}: {outcome(gate, comparison)}" for comparison in gate.comparisons]
    if is_measured(gate):
        found = [line for cost in judgement.costs if cost.experiment == gate.gate for line in cost_lines(cost)]
    found = found or ["nothing was measured" if is_measured(gate) else "nothing was compared"]
    lines = list(dict.fromkeys([gate.explanation, *found]))
    _add_case(suite, recipe, f"gate {gate.gate}", gate.verdict, lines)
    for comparison in gate.comparisons:
        if not is_planted(gate, comparison):
            name = f"gate {gate.gate}: {_arms(comparison)}"
            _add_case(suite, recipe, name, comparison.verdict, comparison_lines(comparison))


def _add_case(suite: ET.Element, recipe: str, name: str, verdict: Verdict, lines: list[str]) -> None:
    """The first line is the message, all are the text."""
    case = ET.SubElement(suite, "testcase", classname=one_line(f"samebits.{recipe}"), name=one_line(name), time="0")
    text = "\n".join(printable(line) for line in lines)
    if verdict == "pass":
        ET.SubElement(case, "system-out").text = text
        return
    problem = ET.SubElement(case, _ELEMENT[verdict], type=verdict, message=one_line(f"{verdict}: {lines[0]}"))
    problem.text = text


def cost_lines(cost: Cost) -> list[str]:
    """What was measured, or why nothing was."""
    findings = cost.findings
    lines = list(cost.failures)
    lines += [
        f"deviation: {row.pin} is {row.reference} and {row.candidate}, on ranks {ranks_text(row.ranks)}"
        for row in cost.deviations
    ]
    lines += cost.problems
    for effect in findings.effects if findings else ():
        smallest = figures.detectable(effect.median)
        lines.append(f"{label(effect)}: {figures.estimate(effect.median)}, minimum detectable effect {smallest}")
        lines.append(f"{label(effect)}, by means: {figures.estimate(effect.mean)}")
    lines += [f"caution: {caution}" for caution in (findings.cautions if findings else ())]
    return [*lines, f"experiment: {measured_text(cost)}", f"step times: {cost.file}"]


def _arms(comparison: Comparison) -> str:
    return f"{comparison.reference_arm} and {comparison.candidate_arm}"


def comparison_lines(comparison: Comparison) -> list[str]:
    """What was found, in order of weight; the first line stands alone."""
    lines = [*_divergence_lines(comparison), *comparison.problems]
    lines += [
        f"deviation: {row.pin} is {row.reference} in the reference, {row.candidate} in the candidate, "
        f"on ranks {ranks_text(row.ranks)}"
        for row in comparison.deviations
    ]
    lines.append(f"compared: {scope_text(comparison.scope)}")
    lines.append(f"reference {comparison.reference}, run fingerprint {comparison.reference_fingerprint or 'none'}")
    lines.append(f"candidate {comparison.candidate}, run fingerprint {comparison.candidate_fingerprint or 'none'}")
    return lines


def _divergence_lines(comparison: Comparison) -> list[str]:
    divergence = comparison.divergence
    if divergence is None:
        return []
    lines = [divergence.explanation, f"looks like: {divergence.symptom}"]
    for group in divergence.groups:
        place = f"{group.item}, {moment_text(group.moment, group.step)}"
        lines.append(f"{group.role} ({counted(group.count, 'rank')}: {group.ranks}): {place}")
    lines.append(f"ranks that agree throughout: {divergence.agreeing or 'none'}")
    return lines
