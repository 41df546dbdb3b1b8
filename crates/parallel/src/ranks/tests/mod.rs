//! Tests of what launchers say, and who listens to it.

mod meeting;

use super::{Launcher, PORT_VARIABLE, Ranks, RanksError};

type Variables = [(&'static str, &'static str)];

fn of(variables: &Variables) -> Result<Ranks, RanksError> {
    Ranks::of_variables(|name| {
        let found = variables.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| value.to_string())
    })
}

fn without(variables: &Variables, name: &str) -> Vec<(&'static str, &'static str)> {
    let kept = variables.iter().filter(|(known, _)| *known != name);
    kept.copied().collect()
}

const TORCHRUN: &Variables = &[
    ("RANK", "5"),
    ("WORLD_SIZE", "8"),
    ("LOCAL_RANK", "1"),
    ("LOCAL_WORLD_SIZE", "4"),
    ("MASTER_ADDR", "h"),
    ("MASTER_PORT", "29500"),
    ("TORCHELASTIC_USE_AGENT_STORE", "True"),
];
const OPEN_MPI: &Variables = &[
    ("OMPI_COMM_WORLD_RANK", "5"),
    ("OMPI_COMM_WORLD_SIZE", "8"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
];
const MPICH: &Variables = &[
    ("PMI_RANK", "5"),
    ("PMI_SIZE", "8"),
    ("MPI_LOCALRANKID", "1"),
    ("MPI_LOCALNRANKS", "4"),
];
const SLURM: &Variables = &[
    ("SLURM_PROCID", "5"),
    ("SLURM_STEP_NUM_TASKS", "8"),
    ("SLURM_LOCALID", "1"),
    ("SLURM_STEP_ID", "0"),
];

#[test]
fn every_launcher_says_the_same_in_words_of_its_own() {
    let launchers = [
        (TORCHRUN, Launcher::Torchrun),
        (OPEN_MPI, Launcher::OpenMpi),
        (MPICH, Launcher::Pmi),
        (SLURM, Launcher::Slurm),
    ];
    for (variables, launcher) in launchers {
        let ranks = of(variables).unwrap();
        assert_eq!(ranks.launcher(), launcher);
        assert_eq!(
            (ranks.rank(), ranks.ranks(), ranks.local_rank()),
            (5, 8, 1),
            "{launcher}"
        );
        // Each of the first three is needed.
        for (name, _) in &variables[..3] {
            let error = of(&without(variables, name)).unwrap_err();
            assert!(
                matches!(error, RanksError::Missing { name: missing, .. } if missing == *name),
                "{launcher} without {name}: {error:?}"
            );
            // The message names the variable for which the process is taken for a rank.
            let found = if name == &variables[0].0 { 1 } else { 0 };
            let text = error.to_string();
            assert!(text.contains(variables[found].0), "{text}");
        }
    }
    assert_eq!(of(&[]).unwrap(), Ranks::ALONE);
}

#[test]
fn the_innermost_launcher_counts() {
    // torchrun on two hosts, one of it on each, started by srun.
    let both = [
        TORCHRUN,
        &[("SLURM_PROCID", "1"), ("SLURM_STEP_NUM_TASKS", "2")],
        &SLURM[2..],
    ]
    .concat();
    let ranks = of(&both).unwrap();
    assert_eq!((ranks.launcher(), ranks.rank()), (Launcher::Torchrun, 5));
    // A batch script of Slurm is no rank.
    assert_eq!(of(&without(SLURM, "SLURM_STEP_ID")).unwrap(), Ranks::ALONE);
    // Empty is not set.
    assert_eq!(
        of(&[("RANK", ""), ("WORLD_SIZE", "")]).unwrap(),
        Ranks::ALONE
    );
}

#[test]
fn contradictions_are_named() {
    let with = |name: &str, value: &'static str| {
        let changed = TORCHRUN.iter().map(|&(known, old)| match known == name {
            true => (known, value),
            false => (known, old),
        });
        let changed: Vec<_> = changed.collect();
        of(&changed).unwrap_err().to_string()
    };
    assert_eq!(
        with("RANK", "8"),
        "RANK is 8, and must be less than WORLD_SIZE, which is 8"
    );
    assert_eq!(
        with("WORLD_SIZE", "0"),
        "RANK is 5, and must be less than WORLD_SIZE, which is 0"
    );
    assert_eq!(
        with("LOCAL_RANK", "4"),
        "LOCAL_RANK is 4, and must be less than LOCAL_WORLD_SIZE, which is 4"
    );
    assert_eq!(
        with("RANK", "-1"),
        "RANK is \"-1\", and must be a number from 0 on, in digits alone"
    );
    assert!(with("RANK", "+1").contains("in digits alone"));
    assert!(with("MASTER_PORT", "+80").contains("in digits alone"));
    let kubernetes = with("MASTER_PORT", "tcp://10.0.0.1:80");
    assert!(kubernetes.contains(PORT_VARIABLE), "{kubernetes}");
    assert!(with("WORLD_SIZE", "99999999999").contains("a number"));
    assert!(with("MASTER_PORT", "0").contains("a port"));
    // The next port is where ranks meet, and there is none.
    assert!(with("MASTER_PORT", "65535").contains("behind which there is none"));
}

#[test]
fn torchruns_own_port_is_left_to_it() {
    let port = |variables: &Variables| of(variables).unwrap().port;
    assert_eq!(port(TORCHRUN), Some(29501));
    assert_eq!(
        port(&without(TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE")),
        Some(29500)
    );
    let named = [TORCHRUN, &[(PORT_VARIABLE, "7")]].concat();
    assert_eq!(port(&named), Some(7));
    assert_eq!(port(OPEN_MPI), None);
}

#[test]
fn a_rank_has_the_gpu_of_its_number() {
    let ranks = of(TORCHRUN).unwrap();
    assert_eq!(ranks.device(4), Ok(1));
    // The case in which each rank is shown its own GPU alone.
    assert_eq!(ranks.device(1), Ok(0));
    assert_eq!(
        ranks.device(0).unwrap_err().to_string(),
        "this is rank 1 of its host, which needs 2 GPUs, and 0 are visible"
    );
    assert_eq!(Ranks::ALONE.device(1), Ok(0));
    assert!(Ranks::ALONE.device(0).is_err());
}

/// Names of everybody: one of them alone is no launcher.
#[test]
fn one_variable_alone_does_not_make_a_rank() {
    for variable in [("RANK", "3"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1")] {
        assert_eq!(of(&[variable]).unwrap(), Ranks::ALONE);
    }
    let slurm_under_a_variable = [SLURM, &[("WORLD_SIZE", "1")]].concat();
    assert_eq!(
        of(&slurm_under_a_variable).unwrap().launcher(),
        Launcher::Slurm
    );
    let half = of(&[("RANK", "3"), ("LOCAL_RANK", "3")]).unwrap_err();
    assert_eq!(
        half.to_string(),
        "RANK is set, as torchrun sets it, but WORLD_SIZE is not; set it too, or unset RANK where this process is to be alone"
    );
}

#[test]
fn a_step_of_slurm_has_its_own_number_of_processes() {
    let of_the_job = [SLURM, &[("SLURM_NTASKS", "64")]].concat();
    assert_eq!(of(&of_the_job).unwrap().ranks(), 8);
    let old = [
        &without(SLURM, "SLURM_STEP_NUM_TASKS")[..],
        &[("SLURM_NTASKS", "8")],
    ]
    .concat();
    assert_eq!(of(&old).unwrap().ranks(), 8);
}

/// In Kubernetes a service that is called `master` sets such variables for all.
#[test]
fn alone_it_does_not_matter_where_ranks_meet() {
    let service = [("MASTER_PORT", "tcp://10.0.0.1:80"), ("MASTER_ADDR", "?")];
    assert_eq!(of(&service).unwrap(), Ranks::ALONE);
    let one = [("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0")];
    let one = of(&[&one[..], &service].concat()).unwrap();
    assert_eq!((one.launcher(), one.ranks()), (Launcher::Torchrun, 1));
}

#[test]
fn addresses_may_stand_in_brackets() {
    let host = |value: &'static str| {
        let named = [
            &without(TORCHRUN, "MASTER_ADDR")[..],
            &[("MASTER_ADDR", value)],
        ]
        .concat();
        of(&named).unwrap().host.unwrap()
    };
    assert_eq!(host("[::1]"), "::1");
    assert_eq!(host("::1"), "::1");
    assert_eq!(host("[host]"), "[host]");
}

#[test]
fn a_job_has_the_name_that_its_launcher_gives_it() {
    let job = |variables: &Variables| of(variables).unwrap().job;
    assert_eq!(job(TORCHRUN), None);
    let elastic = [TORCHRUN, &[("TORCHELASTIC_RUN_ID", "abc")]].concat();
    assert_eq!(job(&elastic).unwrap(), "abc");
    let step = [SLURM, &[("SLURM_JOB_ID", "17")]].concat();
    assert_eq!(job(&step).unwrap(), "17.0");
    let other = [OPEN_MPI, &[("SLURM_JOB_ID", "17")]].concat();
    assert_eq!(job(&other), None);
}
