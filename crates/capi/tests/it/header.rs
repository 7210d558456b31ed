//! `include/quire.h` is what the sources say, and says of each function what a caller must know.

use std::collections::BTreeSet;
use std::path::Path;

/// The header that the sources make.
fn made() -> String {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(here.join("cbindgen.toml")).expect("cbindgen.toml");
    let mut builder = cbindgen::Builder::new().with_config(config);
    for module in [
        "error",
        "volume",
        "file",
        "group",
        "lease",
        "names",
        "attributes",
        "xattr",
        "properties",
        "snapshots",
        "queue",
        "queue/vectored",
    ] {
        builder = builder.with_src(here.join(format!("src/{module}.rs")));
    }
    let mut text = Vec::new();
    builder.generate().expect("the header").write(&mut text);
    let preface = std::fs::read_to_string(here.join("include/preface.h")).expect("the preface");
    preface + &without_rust(&String::from_utf8(text).expect("UTF-8"))
}

/// Without the sections that Rust's comments have for callers in Rust.
fn without_rust(header: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut in_section = false;
    for line in header.lines() {
        if line.trim() == "// # Safety" {
            in_section = true;
            while kept.last().is_some_and(|last| last.trim() == "//") {
                kept.pop();
            }
        } else if !line.starts_with("//") {
            in_section = false;
        }
        if !in_section {
            kept.push(line);
        }
    }
    kept.join("\n") + "\n"
}

#[test]
fn the_header_is_that_of_the_sources() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/quire.h");
    let made = made();
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &made).expect("writing the header");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == made,
        "{} is not what the sources make: BLESS=1 cargo test -p quire-capi --test it header",
        path.display()
    );
}

/// Functions of a header whose comment lacks what every caller must know.
fn poor(header: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut comment = String::new();
    for line in header.lines() {
        if let Some(text) = line.strip_prefix("//") {
            comment.push_str(text);
            comment.push('\n');
            continue;
        }
        if let Some((before, _)) = line.split_once('(')
            && let Some(name) = before.split([' ', '*']).next_back().filter(|name| name.starts_with("quire_"))
        {
            let gives = !before.starts_with("void ") || before.contains('*');
            if gives && !comment.contains("\n Returns:") {
                found.push(format!("{name} does not say what it returns"));
            }
            if !comment.contains("\n Threads:") {
                found.push(format!("{name} does not say which threads may call it"));
            }
        }
        comment.clear();
    }
    found
}

#[test]
fn every_function_says_what_it_returns_and_who_may_call_it() {
    assert_eq!(poor("// Does.\n//\n// Threads: any.\nvoid quire_a(void);\n"), [""; 0]);
    assert_eq!(poor("// Does.\nint quire_b(int one,\n            int two);\n").len(), 2);
    let header = made();
    assert!(header.matches("\nint quire_").count() > 40, "the header has the functions");
    assert_eq!(poor(&header), [""; 0]);
}

/// A comment named the function `quire_lease_range`, which there is not.
#[test]
fn comments_name_what_is_declared() {
    let header = made();
    let names = |text: &str| -> BTreeSet<String> {
        let words = text.split(|letter: char| letter != '_' && !letter.is_ascii_alphanumeric());
        words.filter(|word| word.starts_with("quire_")).map(str::to_owned).collect()
    };
    let (comments, code): (Vec<_>, Vec<_>) = header
        .lines()
        .map(|line| line.split_once("//").unwrap_or((line, "")))
        .map(|(code, comment)| (comment, code))
        .unzip();
    let (named, declared) = (names(&comments.join("\n")), names(&code.join("\n")));
    assert!(named.len() > 20, "{named:?}");
    assert_eq!(named.difference(&declared).collect::<Vec<_>>(), [""; 0]);
}

/// Nothing held the layout of the structures still: a field in another place, or of another size, would have
/// passed every test and broken the programs that are there. The table is compiled by the test of all
/// functions; here it is complete.
#[test]
fn every_structure_and_constant_is_in_the_table_of_the_interface() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/abi.h");
    let table = std::fs::read_to_string(path).expect("the table");
    let header = made();
    let mut wanted = Vec::new();
    let mut structure = None;
    for line in header.lines().map(|line| line.split("//").next().unwrap_or_default().trim()) {
        if let Some(name) = line.strip_prefix("typedef struct ").and_then(|rest| rest.strip_suffix(" {")) {
            wanted.push(format!("SIZE({name}, "));
            structure = Some(name);
        } else if line.starts_with('}') {
            structure = None;
        } else if let (Some(name), Some(field)) = (structure, line.strip_suffix(';')) {
            let field = field.split('[').next().and_then(|field| field.split([' ', '*']).next_back());
            wanted.push(format!("PLACE({name}, {}, ", field.expect("a field has a name")));
        } else if let Some((name, _)) = line.strip_prefix("#define ").and_then(|rest| rest.split_once(' ')) {
            wanted.push(format!("CONSTANT({name}, "));
        }
    }
    assert!(wanted.len() > 80, "{wanted:?}");
    let missing: Vec<_> = wanted.iter().filter(|line| !table.contains(*line)).collect();
    assert!(missing.is_empty(), "tests/c/abi.h lacks {missing:?}");
}
