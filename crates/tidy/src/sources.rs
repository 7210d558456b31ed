//! The Rust files: widths of comments, and modules where one looks for them.

use super::{files, none, read, root};

/// As in rustfmt.toml, which does not wrap comments.
const WIDTH: usize = 110;
/// Directories whose comments keep to [`WIDTH`]. Every new one belongs here.
const WRAPPED: [&str; 2] = ["crates", "fuzz"];
/// An example that uses the rig of its crate's tests.
const OTHER_PATH: [&str; 1] = ["crates/cache/examples/reclaim/main.rs"];

/// Numbers of lines that are comments and too wide. Code blocks, drawings and tables in documentation may be
/// wider, and so may a line with an address, or one of a single word.
fn wide(text: &str) -> Vec<usize> {
    let mut found = Vec::new();
    let mut in_block = false;
    for (n, line) in text.lines().enumerate() {
        let Some(comment) = line.trim_start().strip_prefix("//") else {
            in_block = false;
            continue;
        };
        let prose = comment.trim_start_matches(['/', '!']).trim();
        if prose.starts_with("```") {
            in_block = !in_block;
        }
        let may_be_wide = in_block || prose.starts_with('|') || prose.contains("://") || !prose.contains(' ');
        if line.chars().count() > WIDTH && !may_be_wide {
            found.push(n + 1);
        }
    }
    found
}

/// Numbers of lines that give a module the path of a file.
fn paths(text: &str) -> Vec<usize> {
    let lines = text.lines().enumerate();
    lines.filter(|(_, line)| line.trim_start().starts_with("#[path")).map(|(n, _)| n + 1).collect()
}

#[test]
fn wide_comments_are_found() {
    let words = "word ".repeat(30);
    for line in [format!("// {words}"), format!("    /// {words}"), format!("//! * {words}")] {
        assert_eq!(wide(&format!("fn f() {{}}\n{line}\n")), [2], "{line}");
    }
    let table = format!("/// | {words} |");
    let block = format!("/// ```text\n/// {words}\n/// ```");
    let address = format!("/// {words} https://example.org");
    let code = format!("let x = \"{words}\";");
    for line in [table, block, address, code, format!("/// {}", "x".repeat(200))] {
        assert_eq!(wide(&line), [0; 0], "{line}");
    }
    // A block that was left open does not hide what follows.
    assert_eq!(wide(&format!("/// ```text\nfn f() {{}}\n/// {words}")), [3]);
}

#[test]
fn comments_keep_to_the_width() {
    let mut found = Vec::new();
    for path in WRAPPED.iter().flat_map(|directory| files(&root().join(directory), "rs")) {
        let lines = wide(&read(&path));
        found.extend(lines.iter().map(|line| format!("{}:{line}: wider than {WIDTH}", path.display())));
    }
    none(found);
}

#[test]
fn modules_are_where_their_names_say() {
    assert_eq!(paths("mod a;\n#[path = \"b.rs\"]\nmod c;\n"), [2]);
    let mut found = Vec::new();
    for path in files(&root(), "rs") {
        if OTHER_PATH.iter().any(|other| path.ends_with(other)) {
            continue;
        }
        let lines = paths(&read(&path));
        found.extend(lines.iter().map(|line| format!("{}:{line}: a module of another path", path.display())));
    }
    none(found);
}

/// Names in a directory of modules that its main file does not declare: what is in them is never compiled.
fn forgotten<'n>(main: &str, names: &[&'n str]) -> Vec<&'n str> {
    let declared = |name: &str| main.lines().any(|line| line.trim() == format!("mod {name};"));
    names.iter().filter(|name| **name != "main" && !declared(name)).copied().collect()
}

/// A file of tests beside others is a program of its own; one in the directory of a program is nothing until
/// its main file declares it, and nobody misses tests that do not run.
#[test]
fn every_module_of_a_test_program_is_in_it() {
    assert_eq!(forgotten("#[cfg(loom)]\nmod a;\n// mod b;\n", &["a", "b", "main"]), ["b"]);
    let mut found = Vec::new();
    for main in files(&root().join("crates"), "rs") {
        let directory = main.parent().expect("a file is in a directory");
        let is_program =
            main.ends_with("main.rs") && directory.parent().is_some_and(|it| it.ends_with("tests"));
        if !is_program {
            continue;
        }
        let beside: Vec<_> =
            files(directory, "rs").into_iter().filter(|path| path.parent() == Some(directory)).collect();
        let names: Vec<_> = beside.iter().filter_map(|path| path.file_stem()?.to_str()).collect();
        let lost = forgotten(&read(&main), &names);
        found.extend(lost.iter().map(|name| format!("{}: no module {name}", main.display())));
    }
    none(found);
}
