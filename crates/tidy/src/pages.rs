//! The Markdown pages: links that lead somewhere, fuzz targets that are documented.

use super::{files, none, read, root};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use std::path::Path;

/// What a page links to, as written.
fn links(text: &str) -> Vec<String> {
    let target = |event| match event {
        Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
            Some(dest_url.into_string())
        }
        _ => None,
    };
    Parser::new_ext(text, Options::ENABLE_TABLES).filter_map(target).collect()
}

/// The anchors of a page's headings, as GitHub makes them.
fn anchors(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut heading: Option<String> = None;
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::End(TagEnd::Heading(_)) => found.extend(heading.take()),
            Event::Text(words) | Event::Code(words) => {
                let slug = words.to_lowercase().replace(' ', "-");
                let kept = |c: &char| c.is_alphanumeric() || matches!(c, '-' | '_');
                heading.iter_mut().for_each(|heading| heading.extend(slug.chars().filter(kept)));
            }
            _ => {}
        }
    }
    found
}

/// Links of a page at `path` that lead nowhere: no such file, or no such heading in it. Addresses are not
/// looked up.
fn broken(path: &Path, text: &str) -> Vec<String> {
    let leads_nowhere = |link: &String| {
        if link.contains("://") || link.starts_with("mailto:") {
            return false;
        }
        let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
        let target = if file.is_empty() { path.to_owned() } else { path.with_file_name("").join(file) };
        if !target.exists() {
            return true;
        }
        let text = if file.is_empty() { text.to_owned() } else { String::new() };
        let text = if text.is_empty() && !anchor.is_empty() { read(&target) } else { text };
        !anchor.is_empty() && !anchors(&text).iter().any(|it| it == anchor)
    };
    links(text).into_iter().filter(leads_nowhere).collect()
}

#[test]
fn broken_links_are_found() {
    let here = root().join("README.md");
    let page = "# A `b` c\n[x](#a-b-c) [y](docs/fsck.md) [z](https://example.org/none)\n";
    assert_eq!(broken(&here, page), [""; 0]);
    let page = "# A\n[x](#b) [y](docs/none.md)\n\n| t |\n| --- |\n| [z](docs/fsck.md#none) |\n";
    assert_eq!(broken(&here, page), ["#b", "docs/none.md", "docs/fsck.md#none"]);
}

#[test]
fn every_link_leads_somewhere() {
    let mut found = Vec::new();
    for path in files(&root(), "md") {
        let links = broken(&path, &read(&path));
        found.extend(links.iter().map(|link| format!("{}: {link} leads nowhere", path.display())));
    }
    none(found);
}

/// Names that a page does not have as code.
fn undocumented<'n>(names: &[&'n str], page: &str) -> Vec<&'n str> {
    names.iter().filter(|name| !page.contains(&format!("`{name}`"))).copied().collect()
}

#[test]
fn every_fuzz_target_is_built_and_documented() {
    assert_eq!(undocumented(&["a", "b"], "target `a`, and b"), ["b"]);
    let paths = files(&root().join("fuzz/fuzz_targets"), "rs");
    let names: Vec<_> = paths.iter().filter_map(|path| path.file_stem()?.to_str()).collect();
    assert!(!names.is_empty(), "there are fuzz targets");
    let page = read(&root().join("docs/testing.md"));
    let manifest = read(&root().join("fuzz/Cargo.toml"));
    let mut found: Vec<_> = undocumented(&names, &page)
        .iter()
        .map(|name| format!("docs/testing.md does not name `{name}`"))
        .collect();
    let unbuilt = names.iter().filter(|name| !manifest.contains(&format!("\"fuzz_targets/{name}.rs\"")));
    found.extend(unbuilt.map(|name| format!("fuzz/Cargo.toml does not build {name}")));
    none(found);
}
