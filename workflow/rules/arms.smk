# Runs an arm. The stamp lies inside the artifact: who deletes the folder asks for the arm again.
rule arm:
    input:
        samebits.needs,
    output:
        "results/{recipe}/arms/{arm}/ran",
    log:
        "results/{recipe}/logs/{arm}.run.log",
    priority: samebits.priority
    conda:
        "../envs/samebits.yaml"
    threads: samebits.threads
    params:
        key=samebits.arm_key,
    shell:
        "samebits run recipes/{wildcards.recipe}.yaml {wildcards.arm} --results results"
        " --stamp {output} --log {log}"
