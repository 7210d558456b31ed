//! The probe on the directory for temporary files.

use quire_bench::arguments::Probe;
use quire_bench::interrupt::Interrupt;
use quire_bench::outcome::Trouble;
use quire_bench::probe;
use quire_bench::progress::Progress;

fn arguments(dir: &std::path::Path) -> Probe {
    Probe { seconds: 0.1, json: false, direct_load: false, seed: 1, dir: dir.to_owned() }
}

#[test]
fn a_probe_asks_every_question_and_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    for direct_load in [false, true] {
        let arguments = Probe { direct_load, ..arguments(directory.path()) };
        let findings = probe::probe(&arguments, &Interrupt::none(), &Progress::hidden()).unwrap();
        let json = findings.json();
        let names: Vec<&str> =
            json["findings"].as_array().unwrap().iter().map(|f| f["name"].as_str().unwrap()).collect();
        assert_eq!(
            names,
            [
                "torn_4k",
                "torn_16k",
                "torn_64k",
                "torn_1m",
                "lost_appends_buffered",
                "interleaved_appends_buffered",
                "lost_appends_direct",
                "interleaved_appends_direct",
                "size_before_data",
                "partial_appends",
                "stale_buffered",
                "stale_direct_after_buffered",
                "stale_buffered_after_direct",
                "stale_direct_after_direct",
                "stale_both",
                "mapped_beside_buffered_same_page",
                "mapped_beside_direct_same_page",
                "mapped_beside_buffered_next_page",
                "mapped_beside_direct_next_page",
                "stale_mapped_after_buffered",
                "stale_mapped_after_direct",
                "lost_after_msync",
                "readers_starvation",
                "writers_starvation",
            ]
        );
        for finding in json["findings"].as_array().unwrap() {
            match finding["answer"].as_str().unwrap() {
                "not tried" => assert!(finding["why"].as_str().unwrap().contains("O_DIRECT")),
                "yes" => assert!(finding["found"].as_u64().unwrap() > 0),
                "no" => assert!(finding["found"] == 0 && finding["of"].is_u64()),
                other => panic!("{other}"),
            }
        }
        // The report says whether the load ran, and not whether somebody asked for it.
        let has_direct = !json["findings"].as_array().unwrap().iter().any(|f| f["answer"] == "not tried");
        assert_eq!(json["direct_load"], direct_load && has_direct);
        // Whatever is below temporary files: no directory of Quire's with the property.
        assert_eq!(json["promises"]["untorn"], serde_json::json!({ "directory": null, "file": null }));
        let direct = &json["promises"]["untorn_direct_writes"];
        assert!(direct.is_null() || direct["min"].as_u64() <= direct["max"].as_u64(), "{direct}");
        assert_eq!(findings.promises.text().lines().count(), 2);
        // Every kernel keeps these promises.
        for name in ["lost_appends_buffered", "stale_buffered", "lost_after_msync"] {
            assert!(!findings.findings.iter().any(|f| f.name == name && f.is_found()), "{name}");
        }
        assert_eq!(findings.table().lines().count(), names.len() + 1);
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn a_probe_of_nothing_is_refused() {
    let outcome =
        probe::probe(&arguments("/nowhere/at/all".as_ref()), &Interrupt::none(), &Progress::hidden());
    assert!(matches!(outcome.map(drop), Err(Trouble::Usage(_))));
}
