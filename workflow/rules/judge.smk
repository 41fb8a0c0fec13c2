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
