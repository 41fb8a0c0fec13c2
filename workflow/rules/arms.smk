# Runs an arm, here or as a job of the cluster file's scheduler, for which it waits: it is never a cluster job itself. The
# stamp lies inside the artifact: who deletes the folder asks for the arm again.
rule arm:
    input:
        samebits.needs,
    output:
        "results/{recipe}/arms/{arm}/ran",
    log:
        "results/{recipe}/logs/{arm}.run.log",
    priority: samebits.priority
    localrule: True
    conda:
        "../envs/samebits.yaml"
    threads: samebits.threads(config)
    params:
        key=samebits.arm_key,
        cluster=samebits.cluster_option(config),
    shell:
        "samebits run recipes/{wildcards.recipe}.yaml {wildcards.arm} --results results"
        " --stamp {output} --log {log} {params.cluster}"


# Makes all runs of an experiment that measures time, one after the other and alone on this machine, or as one job of the
# cluster, for which it waits.
rule experiment:
    output:
        "results/{recipe}/{experiment}/ran",
    log:
        "results/{recipe}/logs/{experiment}.run.log",
    localrule: True
    conda:
        "../envs/samebits.yaml"
    threads: samebits.all_threads(config, workflow.cores)
    params:
        key=samebits.experiment_key,
        option=samebits.experiment_option,
        cluster=samebits.cluster_option(config),
    shell:
        "samebits overhead recipes/{wildcards.recipe}.yaml {params.option} --results results"
        " --stamp {output} --log {log} {params.cluster}"
