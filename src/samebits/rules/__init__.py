"""Rules across the fields of a recipe, each under a name, so that a recipe that passes does not die in a rank.

What Megatron Core asserts is cited by version 0.16.1. A rule is a generator of problems and says nothing where a
field that it divides by is at fault already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from samebits.problem import Problem
from samebits.rules import container, evidence, layout, training
from samebits.sections import Recipe

Rule = Callable[[Recipe], Iterator[Problem]]

RULES: dict[str, Rule] = {
    "name": evidence.name,
    "world": layout.world,
    "context": layout.context,
    "heads": layout.heads,
    "hidden": layout.hidden,
    "head-size": layout.head_size,
    "feed-forward": layout.feed_forward,
    "vocabulary": layout.vocabulary,
    "sequence-parallel": layout.sequence_parallel,
    "sequence-length": layout.sequence_length,
    "layers": layout.layers,
    "virtual-pipeline": layout.virtual_pipeline,
    "expert-parallel": layout.expert_parallel,
    "expert-ranks": layout.expert_ranks,
    "experts": layout.experts,
    "moe-tensor": layout.moe_tensor,
    "top-k": layout.top_k,
    "load-balancing": layout.load_balancing,
    "mtp-embeddings": layout.mtp_embeddings,
    "mtp-length": layout.mtp_length,
    "global-batch": training.global_batch,
    "interleaved-batch": training.interleaved_batch,
    "learning-rate": training.learning_rate,
    "warm-up": training.warm_up,
    "betas": training.betas,
    "resume-step": training.resume_step,
    "seeds": training.seeds,
    "token-digest": training.token_digest,
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
    "fault-batch": evidence.fault_batch,
    "waivers": evidence.waivers,
    "pins": evidence.pins,
    "container-image": container.container_image,
    "container-python": container.container_python,
    "cluster-world": container.cluster_world,
    "cluster-placement": container.cluster_placement,
    "cluster-slurm": container.cluster_slurm,
}


def problems(recipe: Recipe) -> list[Problem]:
    """What every rule finds, in the order of the table."""
    return [problem for rule in RULES.values() for problem in rule(recipe)]
