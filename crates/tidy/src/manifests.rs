//! The manifests: switches that are alive, licenses that we accept, packages that a registry accepts.

use super::{files, none, read, root};
use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};
use spdx::{Expression, LicenseReq, ParseMode};
use std::collections::BTreeSet;

/// Licenses of dependencies that a program under MIT or Apache-2.0 may ship. Each must be in use.
const LICENSES: [&str; 8] = [
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-3-Clause",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Zlib",
];

/// Programs that tests run on our sources. They are in nothing that is shipped, so their license binds
/// nobody.
const TOOLS: [&str; 1] = ["cbindgen"];

fn metadata() -> Metadata {
    metadata_with(&["--locked"])
}

fn metadata_with(options: &[&str]) -> Metadata {
    let mut command = MetadataCommand::new();
    command.manifest_path(root().join("Cargo.toml"));
    command.other_options(options.iter().map(|option| (*option).into()).collect::<Vec<_>>());
    command.exec().unwrap_or_else(|error| panic!("cargo metadata: {error}"))
}

/// Whether a dependency under this expression may be used; also notes which of our licenses that takes.
fn accepted(expression: &str, taken: &mut BTreeSet<&'static str>) -> bool {
    let known = |requirement: &LicenseReq| {
        let name = requirement.to_string();
        LICENSES.iter().copied().find(|license| *license == name)
    };
    let Ok(expression) = Expression::parse_mode(expression, ParseMode::LAX) else { return false };
    taken.extend(expression.requirements().filter_map(|it| known(&it.req)));
    expression.evaluate(|requirement| known(requirement).is_some())
}

#[test]
fn licenses_of_dependencies_are_accepted() {
    let mut none_taken = BTreeSet::new();
    for (expression, fine) in [
        ("MIT OR Apache-2.0", true),
        ("MIT/Apache-2.0", true),
        ("GPL-3.0-only", false),
        ("GPL-3.0-only OR MIT", true),
        ("GPL-3.0-only AND MIT", false),
        ("whatever I like", false),
    ] {
        assert_eq!(accepted(expression, &mut none_taken), fine, "{expression}");
    }
    let mut taken = BTreeSet::new();
    let mut found = Vec::new();
    let metadata = metadata();
    let members = metadata.workspace_packages();
    for (member, dependency) in members.iter().flat_map(|it| it.dependencies.iter().map(move |on| (it, on))) {
        if TOOLS.contains(&dependency.name.as_str()) && dependency.kind != DependencyKind::Development {
            found.push(format!("{}: the tool {} is not for tests alone", member.name, dependency.name));
        }
    }
    for package in &metadata.packages {
        if TOOLS.contains(&package.name.as_str()) {
            continue;
        }
        let license = package.license.as_deref().unwrap_or("none given");
        if !accepted(license, &mut taken) {
            found.push(format!("{} {}: license {license}", package.name, package.version));
        }
    }
    let unused = LICENSES.iter().filter(|license| !taken.contains(*license));
    found.extend(unused.map(|license| format!("no dependency needs the license {license}")));
    none(found);
}

/// Features of `package` that are never read, or never turned on.
///
/// A feature is read if a source file asks for it, a target requires it, or it turns on something else. It is
/// turned on by a dependency of another package, or by a script.
fn dead_features(package: &Package, all: &[Package], sources: &str, scripts: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (feature, turns_on) in package.features.iter().filter(|(name, _)| *name != "default") {
        let quoted = format!("feature = \"{feature}\"");
        let required = package.targets.iter().any(|target| target.required_features.contains(feature));
        if !sources.contains(&quoted) && !required && turns_on.is_empty() {
            found.push(format!("{}: nothing reads the feature {feature}", package.name));
        }
        let by_default = package.features.get("default").is_some_and(|on| on.contains(feature));
        let by_package = all
            .iter()
            .flat_map(|other| &other.dependencies)
            .any(|dependency| dependency.name == *package.name && dependency.features.contains(feature));
        let by_script = scripts.contains(&format!("--features {feature}"));
        if !(by_default || by_package || by_script) {
            found.push(format!("{}: nothing turns the feature {feature} on", package.name));
        }
    }
    found
}

#[test]
fn every_switch_is_used() {
    let metadata = metadata();
    let members: Vec<Package> = metadata.workspace_packages().into_iter().cloned().collect();
    let all_text = |directory: &str, extension: &str| -> String {
        files(&root().join(directory), extension).iter().map(|path| read(path)).collect()
    };
    let sources = all_text("crates", "rs") + &all_text("fuzz", "rs");
    let scripts: String = std::fs::read_dir(root().join("scripts"))
        .expect("there are scripts")
        .map(|entry| read(&entry.expect("a directory entry").path()))
        .collect();

    let mut dead = members[0].clone();
    dead.features.insert("dust".into(), Vec::new());
    assert_eq!(dead_features(&dead, &members, "", "").iter().filter(|it| it.ends_with("dust on")).count(), 1);
    assert_eq!(dead_features(&dead, &members, "feature = \"dust\"", "--features dust"), [""; 0]);

    let mut found: Vec<String> =
        members.iter().flat_map(|package| dead_features(package, &members, &sources, &scripts)).collect();
    // Switches that are no features: those that the lint `unexpected_cfgs` is told of.
    let manifest = read(&root().join("Cargo.toml"));
    let switches: Vec<&str> =
        manifest.split("'cfg(").skip(1).filter_map(|rest| rest.split(')').next()).collect();
    assert!(switches.contains(&"loom"), "the lint is told of switches");
    for switch in switches {
        let read = sources.lines().any(|line| line.contains("cfg") && has_word(line, switch));
        // cargo-fuzz sets this one.
        let set = switch == "fuzzing" || scripts.contains(&format!("--cfg {switch}"));
        if !read || !set {
            found.push(format!("cfg({switch}): read in a source: {read}; set by a script: {set}"));
        }
    }
    none(found);
}

fn has_word(line: &str, word: &str) -> bool {
    line.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|it| it == word)
}

/// What a registry would refuse, or a user miss, in a package that may be published.
fn incomplete(package: &Package, private: &BTreeSet<String>) -> Vec<String> {
    let name = &package.name;
    let directory = package.manifest_path.parent().expect("a manifest is in a directory");
    let mut found = Vec::new();
    let mut need = |there: bool, what: &str| {
        if !there {
            found.push(format!("{name}: no {what}"));
        }
    };
    need(package.description.as_ref().is_some_and(|it| it.len() > 20), "description");
    need((1..=5).contains(&package.keywords.len()), "keywords, at most five");
    need(!package.categories.is_empty(), "categories");
    need(package.readme.as_ref().is_some_and(|readme| directory.join(readme).exists()), "readme");
    need(package.documentation.is_some(), "documentation");
    for license in ["LICENSE-MIT", "LICENSE-APACHE"] {
        need(directory.join(license).exists(), license);
    }
    for dependency in &package.dependencies {
        if dependency.kind == DependencyKind::Development {
            continue;
        }
        if dependency.req.comparators.is_empty() {
            found.push(format!("{name}: the dependency {} has no version", dependency.name));
        }
        if private.contains(dependency.name.as_str()) {
            found.push(format!("{name}: the dependency {} is private", dependency.name));
        }
    }
    found
}

#[test]
fn packages_are_complete() {
    let metadata = metadata();
    let is_private = |package: &Package| package.publish.as_ref().is_some_and(|to| to.is_empty());
    let (private, public): (Vec<_>, Vec<_>) =
        metadata.workspace_packages().into_iter().partition(|package| is_private(package));
    let private: BTreeSet<String> = private.iter().map(|package| package.name.to_string()).collect();
    assert!(public.iter().any(|package| *package.name == "quire-cli"), "the program is published");

    let mut poor = public[0].clone();
    poor.description = None;
    poor.keywords.clear();
    assert_eq!(incomplete(&poor, &private).len(), 2);

    none(public.iter().flat_map(|package| incomplete(package, &private)).collect());
}

/// Packages from a registry that are linked into what uses these members of the workspace.
fn linked(metadata: &Metadata, members: &[&str]) -> BTreeSet<String> {
    let graph = metadata.resolve.as_ref().expect("the dependencies are resolved");
    let is_member = |package: &Package| metadata.workspace_members.contains(&package.id);
    let mut next: Vec<_> = members
        .iter()
        .map(|name| metadata.packages.iter().find(|it| it.name == *name && is_member(it)).expect("a member"))
        .collect();
    let (mut seen, mut linked) = (BTreeSet::new(), BTreeSet::new());
    while let Some(package) = next.pop() {
        // What a procedural macro uses runs in the compiler.
        if !seen.insert(&package.id) || package.targets.iter().any(|target| target.is_proc_macro()) {
            continue;
        }
        if !is_member(package) {
            linked.insert(package.name.to_string());
        }
        let node = graph.nodes.iter().find(|node| node.id == package.id).expect("a node for each package");
        let used =
            node.deps.iter().filter(|on| on.dep_kinds.iter().any(|it| it.kind == DependencyKind::Normal));
        next.extend(used.map(|on| &metadata[&on.pkg]));
    }
    linked
}

/// Once a library that the engine links was compiled without optimisation, with its own copy of a generic
/// function; all of our crates used that copy, and repairs took three times as long.
#[test]
fn what_the_engine_links_is_optimised() {
    let metadata = metadata_with(&["--locked", "--filter-platform", "x86_64-unknown-linux-gnu"]);
    let linked = linked(&metadata, &["quire-fs", "quire-fsck", "quire-fuse"]);
    assert!(linked.contains("crc32c") && !linked.contains("syn") && !linked.contains("quire-base"));
    let manifest = read(&root().join("Cargo.toml"));
    let optimised: BTreeSet<String> = manifest
        .lines()
        .filter_map(|line| line.strip_suffix(" = { opt-level = 1 }").map(str::to_owned))
        .collect();
    // The one that is there for its own speed.
    let expected = linked.into_iter().chain(["libsqlite3-sys".to_owned()]).collect();
    let differ = optimised.symmetric_difference(&expected);
    none(
        differ
            .map(|name| format!("Cargo.toml, profile.dev.package: {name} is missing, or needless"))
            .collect(),
    );
}
