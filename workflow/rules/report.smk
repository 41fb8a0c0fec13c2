# Judges a recipe's arms and writes what was found. It succeeds whatever the verdict.
rule report:
    input:
        samebits.collected,
        "results/{recipe}/localize/done",
    output:
        "results/{recipe}/report.html",
        "results/{recipe}/report.json",
        "results/{recipe}/junit.xml",
    log:
        "results/{recipe}/logs/report.log",
    conda:
        "../envs/samebits.yaml"
    params:
        key=samebits.recipe_key,
    shell:
        "samebits report recipes/{wildcards.recipe}.yaml --results results 2>&1 | tee {log}"
