# Verifies an arm's files and seals its manifest. A refusal is a finding: it is written down, and the report says it.
rule collect:
    input:
        "results/{recipe}/arms/{arm}/ran",
    output:
        "results/{recipe}/arms/{arm}/collected",
    log:
        "results/{recipe}/logs/{arm}.collect.log",
    conda:
        "../envs/samebits.yaml"
    shell:
        "samebits collect results/{wildcards.recipe}/arms/{wildcards.arm} --stamp {output} 2>&1 | tee {log}"


# The same for all runs of an experiment, with their step times as Parquet.
rule collect_runs:
    input:
        "results/{recipe}/{experiment}/ran",
    output:
        "results/{recipe}/{experiment}/collected",
    log:
        "results/{recipe}/logs/{experiment}.collect.log",
    conda:
        "../envs/samebits.yaml"
    shell:
        "samebits collect results/{wildcards.recipe}/{wildcards.experiment} --stamp {output} 2>&1 | tee {log}"


# Where a gate failed: runs traced pairs until what made the arms differ is named. It waits for them, as an arm's rule
# does, and has nothing to run where no gate failed.
rule localize:
    input:
        samebits.collected,
    output:
        "results/{recipe}/localize/done",
    log:
        "results/{recipe}/logs/localize.log",
    localrule: True
    conda:
        "../envs/samebits.yaml"
    threads: samebits.threads(config)
    params:
        key=samebits.recipe_key,
        cluster=samebits.cluster_option(config),
    shell:
        "samebits localize --of recipes/{wildcards.recipe}.yaml --results results"
        " --stamp {output} --log {log} {params.cluster}"


# The only rule that fails where a recipe does not pass, after its report exists.
rule verdict:
    input:
        "results/{recipe}/report.json",
    output:
        "results/{recipe}/verdict.txt",
    log:
        "results/{recipe}/logs/verdict.log",
    localrule: True
    conda:
        "../envs/samebits.yaml"
    shell:
        "samebits verdict results/{wildcards.recipe} 2>&1 | tee {log} {output}"
