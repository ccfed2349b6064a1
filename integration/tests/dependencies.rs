//! Who may know whom (design.md section 3), held against cargo's own metadata.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use cargo_metadata::{DependencyKind, MetadataCommand};

/// Which of our packages a package may use. In tests everybody may also use the testkit and the harness.
const OURS: &[(&str, &[&str])] = &[
    ("holdfast-core", &[]),
    ("holdfast-repo", &["holdfast-core"]),
    ("holdfast-pipeline", &["holdfast-core", "holdfast-repo"]),
    ("holdfast-testkit", &["holdfast-core"]),
    ("holdfast-pgwire", &["holdfast-core"]),
    ("holdfast-postgres", &["holdfast-core", "holdfast-pgwire"]),
    ("holdfast-fs", &["holdfast-core"]),
    ("holdfast-s3", &["holdfast-core"]),
    (
        "holdfast",
        &[
            "holdfast-core",
            "holdfast-repo",
            "holdfast-pipeline",
            "holdfast-postgres",
            "holdfast-fs",
            "holdfast-s3",
        ],
    ),
    ("holdfast-harness", &[]),
    ("holdfast-test-all", &[]),
    (
        "holdfast-integration",
        &[
            "holdfast-core",
            "holdfast-repo",
            "holdfast-pipeline",
            "holdfast-postgres",
            "holdfast-pgwire",
            "holdfast-fs",
            "holdfast-s3",
            "holdfast-harness",
            "holdfast-testkit",
        ],
    ),
];

/// For tests only: a normal dependency on them is allowed to `holdfast-integration` alone.
const TEST_ONLY: &[&str] = &["holdfast-testkit", "holdfast-harness"];

/// Foreign packages (`name*`: all that begin so) and the only ones of ours that may use them directly.
const WRAPPED: &[(&str, &[&str])] = &[
    ("aws-sdk-*", &["holdfast-s3"]),
    ("aws-config", &["holdfast-s3"]),
    ("aws-smithy-*", &["holdfast-s3"]),
    ("aws-lc-rs", &["holdfast-repo"]),
    ("aes-gcm", &["holdfast-repo"]),
    ("hpke", &["holdfast-repo"]),
    ("argon2", &["holdfast-repo"]),
    ("tokio-postgres*", &["holdfast-postgres", "holdfast-harness", "holdfast-integration"]),
    ("postgres-protocol", &["holdfast-pgwire", "holdfast-harness", "holdfast-integration"]),
    ("prometheus-client", &["holdfast"]),
    ("indicatif", &["holdfast"]),
    ("sd-notify", &["holdfast"]),
    ("clap*", &["holdfast", "holdfast-integration"]),
    ("toml", &["holdfast", "holdfast-integration"]),
];

#[derive(Clone, Debug)]
struct Arrow {
    from: String,
    to: String,
    in_tests: bool,
}

fn broken(arrow: &Arrow) -> Option<String> {
    let Arrow { from, to, in_tests } = arrow;
    let fits = |pattern: &str| match pattern.strip_suffix('*') {
        Some(begin) => to.starts_with(begin),
        None => to == pattern,
    };
    if let Some((_, users)) = WRAPPED.iter().find(|(pattern, _)| fits(pattern)) {
        let allowed = *in_tests || users.contains(&from.as_str());
        return (!allowed).then(|| format!("{from} uses {to}, which only {users:?} may use"));
    }
    if !OURS.iter().any(|(name, _)| name == to) {
        return None;
    }
    let Some((_, uses)) = OURS.iter().find(|(name, _)| name == from) else {
        return Some(format!("{from} has no row in this test: say which of our packages it may use"));
    };
    let test_only = TEST_ONLY.contains(&to.as_str());
    let allowed = uses.contains(&to.as_str()) || *in_tests && test_only;
    (!allowed).then(|| format!("{from} uses {to}: that arrow is not in design.md section 3"))
}

#[test]
fn no_arrow_of_the_design_is_broken() {
    let metadata = MetadataCommand::new().no_deps().exec().unwrap();
    let arrows: Vec<Arrow> = metadata
        .workspace_packages()
        .iter()
        .flat_map(|package| {
            package.dependencies.iter().map(|dependency| Arrow {
                from: package.name.to_string(),
                to: dependency.name.clone(),
                in_tests: dependency.kind == DependencyKind::Development,
            })
        })
        .collect();
    assert!(arrows.iter().any(|arrow| arrow.from == "holdfast" && arrow.to == "holdfast-repo"));
    let broken: Vec<String> = arrows.iter().filter_map(broken).collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn each_package_has_a_row() {
    let metadata = MetadataCommand::new().no_deps().exec().unwrap();
    let mut packages: Vec<String> =
        metadata.workspace_packages().iter().map(|p| p.name.to_string()).collect();
    let mut rows: Vec<String> = OURS.iter().map(|(name, _)| (*name).to_owned()).collect();
    packages.sort();
    rows.sort();
    assert_eq!(packages, rows);
}

#[test]
fn forbidden_arrows_are_found() {
    let arrow = |from: &str, to: &str, in_tests| Arrow { from: from.to_owned(), to: to.to_owned(), in_tests };
    for (from, to, in_tests) in [
        ("holdfast-core", "holdfast-repo", false),
        ("holdfast-postgres", "holdfast-repo", false),
        ("holdfast-postgres", "holdfast-pipeline", true),
        ("holdfast-fs", "aws-sdk-s3", false),
        ("holdfast-pipeline", "aes-gcm", false),
        ("holdfast", "tokio-postgres", false),
        ("holdfast", "tokio-postgres-rustls", false),
        ("holdfast-repo", "holdfast-testkit", false),
        ("holdfast-new", "holdfast-core", false),
    ] {
        assert!(broken(&arrow(from, to, in_tests)).is_some(), "{from} → {to}");
    }
    for (from, to, in_tests) in [
        ("holdfast-repo", "holdfast-testkit", true),
        ("holdfast-postgres", "holdfast-pgwire", false),
        ("holdfast-s3", "aws-sdk-s3", false),
        ("holdfast-core", "serde", false),
    ] {
        assert!(broken(&arrow(from, to, in_tests)).is_none(), "{from} → {to}");
    }
}
