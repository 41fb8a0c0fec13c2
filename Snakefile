"""Every recipe in recipes/ from its arms to its verdict.

snakemake --profile profiles/default                              every recipe
snakemake --profile profiles/default results/smoke/report.html    one report
snakemake --profile profiles/default --dry-run                    what would run, and why
snakemake --profile profiles/slurm                                on a cluster: arms are jobs of their own
"""

from snakemake.utils import min_version

from samebits import workflow as samebits

min_version("9.0")
samebits.add_to_path()


onstart:
    samebits.hold()


wildcard_constraints:
    recipe=samebits.NAME,
    arm=samebits.NAME,
    experiment=samebits.EXPERIMENT,


include: "workflow/rules/arms.smk"
include: "workflow/rules/judge.smk"
include: "workflow/rules/report.smk"


rule all:
    default_target: True
    input:
        samebits.everything,
