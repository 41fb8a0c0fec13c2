"""Rules across the fields of a recipe, each under a name, so that a recipe that passes does not die in a rank.

What Megatron Core asserts is cited by version 0.16.1. A rule is a generator of problems and says nothing where a
field that it divides by is at fault already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from samebits.problem import Problem
from samebits.rules import command, container, evidence, layout, training
from samebits.sections import CommandRecipe, MegatronRecipe, Recipe

Rule = Callable[[Recipe], Iterator[Problem]]


def _built_in(rule: Callable[[MegatronRecipe], Iterator[Problem]]) -> Rule:
    """Says nothing of a recipe of another workload."""
    return lambda recipe: rule(recipe) if isinstance(recipe, MegatronRecipe) else iter(())


RULES: dict[str, Rule] = {
    "name": evidence.name,
    "world": layout.world,
    "context": _built_in(layout.context),
    "heads": _built_in(layout.heads),
    "hidden": _built_in(layout.hidden),
    "head-size": _built_in(layout.head_size),
    "feed-forward": _built_in(layout.feed_forward),
    "vocabulary": _built_in(layout.vocabulary),
    "sequence-parallel": _built_in(layout.sequence_parallel),
    "sequence-length": _built_in(layout.sequence_length),
    "layers": _built_in(layout.layers),
    "virtual-pipeline": _built_in(layout.virtual_pipeline),
    "expert-parallel": _built_in(layout.expert_parallel),
    "expert-ranks": _built_in(layout.expert_ranks),
    "experts": _built_in(layout.experts),
    "moe-tensor": _built_in(layout.moe_tensor),
    "top-k": _built_in(layout.top_k),
    "load-balancing": _built_in(layout.load_balancing),
    "mtp-embeddings": _built_in(layout.mtp_embeddings),
    "mtp-length": _built_in(layout.mtp_length),
    "global-batch": _built_in(training.global_batch),
    "interleaved-batch": _built_in(training.interleaved_batch),
    "learning-rate": _built_in(training.learning_rate),
    "warm-up": _built_in(training.warm_up),
    "betas": _built_in(training.betas),
    "resume-step": training.resume_step,
    "seeds": _built_in(training.seeds),
    "token-digest": _built_in(training.token_digest),
    "environment": training.environment,
    "threads": training.threads,
    "windows": evidence.windows,
    "capture-ranks": evidence.capture_ranks,
    "gates": evidence.gates,
    "evidence-gate": evidence.evidence_gate,
    "control-gate": evidence.control_gate,
    "overhead-gate": evidence.overhead_gate,
    "control-names": evidence.control_names,
    "fault-rank": evidence.fault_rank,
    "fault-step": evidence.fault_step,
    "fault-target": evidence.fault_target,
    "fault-chance": evidence.fault_chance,
    "fault-batch": _built_in(evidence.fault_batch),
    "waivers": evidence.waivers,
    "pins": evidence.pins,
    "container-image": container.container_image,
    "container-python": container.container_python,
    "cluster-world": container.cluster_world,
    "cluster-placement": container.cluster_placement,
    "cluster-slurm": container.cluster_slurm,
}


def problems(recipe: Recipe) -> list[Problem]:
    """What every rule finds, in the order of the tables."""
    found = [problem for rule in RULES.values() for problem in rule(recipe)]
    if isinstance(recipe, CommandRecipe):
        found += [problem for own in command.RULES.values() for problem in own(recipe)]
    return found
