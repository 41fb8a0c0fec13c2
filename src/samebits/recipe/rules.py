"""Rules across the fields of a recipe, each under a name, so that a recipe that passes does not die in a rank.

What Megatron Core asserts is cited by version 0.16.1. A rule is a generator of problems and says nothing where a
field that it divides by is at fault already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from samebits.recipe import command_rules, evidence_rules, model_rules, run_rules
from samebits.recipe.problem import Problem
from samebits.spec.sections import CommandRecipe, MegatronRecipe, Recipe

Rule = Callable[[Recipe], Iterator[Problem]]


def _built_in(rule: Callable[[MegatronRecipe], Iterator[Problem]]) -> Rule:
    """Says nothing of a recipe of another workload."""
    return lambda recipe: rule(recipe) if isinstance(recipe, MegatronRecipe) else iter(())


RULES: dict[str, Rule] = {
    "name": evidence_rules.name,
    "world": model_rules.world,
    "context": _built_in(model_rules.context),
    "heads": _built_in(model_rules.heads),
    "hidden": _built_in(model_rules.hidden),
    "head-size": _built_in(model_rules.head_size),
    "feed-forward": _built_in(model_rules.feed_forward),
    "vocabulary": _built_in(model_rules.vocabulary),
    "sequence-parallel": _built_in(model_rules.sequence_parallel),
    "sequence-length": _built_in(model_rules.sequence_length),
    "layers": _built_in(model_rules.layers),
    "virtual-pipeline": _built_in(model_rules.virtual_pipeline),
    "expert-parallel": _built_in(model_rules.expert_parallel),
    "expert-ranks": _built_in(model_rules.expert_ranks),
    "experts": _built_in(model_rules.experts),
    "moe-tensor": _built_in(model_rules.moe_tensor),
    "top-k": _built_in(model_rules.top_k),
    "load-balancing": _built_in(model_rules.load_balancing),
    "mtp-embeddings": _built_in(model_rules.mtp_embeddings),
    "mtp-length": _built_in(model_rules.mtp_length),
    "global-batch": _built_in(run_rules.global_batch),
    "interleaved-batch": _built_in(run_rules.interleaved_batch),
    "learning-rate": _built_in(run_rules.learning_rate),
    "warm-up": _built_in(run_rules.warm_up),
    "betas": _built_in(run_rules.betas),
    "resume-step": run_rules.resume_step,
    "seeds": _built_in(run_rules.seeds),
    "token-digest": _built_in(run_rules.token_digest),
    "environment": run_rules.environment,
    "threads": run_rules.threads,
    "windows": evidence_rules.windows,
    "capture-ranks": evidence_rules.capture_ranks,
    "gates": evidence_rules.gates,
    "evidence-gate": evidence_rules.evidence_gate,
    "control-gate": evidence_rules.control_gate,
    "overhead-gate": evidence_rules.overhead_gate,
    "control-names": evidence_rules.control_names,
    "fault-rank": evidence_rules.fault_rank,
    "fault-step": evidence_rules.fault_step,
    "fault-target": evidence_rules.fault_target,
    "fault-chance": evidence_rules.fault_chance,
    "fault-batch": _built_in(evidence_rules.fault_batch),
    "waivers": evidence_rules.waivers,
    "pins": evidence_rules.pins,
    "container-image": run_rules.container_image,
    "container-python": run_rules.container_python,
    "cluster-world": run_rules.cluster_world,
    "cluster-placement": run_rules.cluster_placement,
    "cluster-slurm": run_rules.cluster_slurm,
}


def problems(recipe: Recipe) -> list[Problem]:
    """What every rule finds, in the order of the tables."""
    found = [problem for rule in RULES.values() for problem in rule(recipe)]
    if isinstance(recipe, CommandRecipe):
        found += [problem for own in command_rules.RULES.values() for problem in own(recipe)]
    return found
