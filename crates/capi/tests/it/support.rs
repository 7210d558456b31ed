//! What the tests share: the library as `scripts/c-library` installs it, and programs that must succeed.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

/// The crate.
pub fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Whether there is such a program.
pub fn installed(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|out| out.status.success())
}

/// What the command writes to its output.
#[track_caller]
pub fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    out.into_owned()
}

/// Where the library was installed, once for this program.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<tempfile::TempDir> = OnceLock::new();
    let directory = LIBRARY.get_or_init(|| {
        let directory = tempfile::tempdir().expect("a directory");
        let script = here().join("../../scripts/c-library");
        succeed(Command::new(script).arg("--debug").arg(directory.path()).env("CARGO", env!("CARGO")));
        directory
    });
    directory.path()
}

/// Runs the first commands of a page of the manual as they stand there, in `directory`, and returns what they
/// write. The library is not built again and is below a directory of its own instead of `/usr/local`; `more`
/// replaces other texts.
#[track_caller]
pub fn run_page(page: &str, directory: &Path, more: &[(&str, &str)]) -> String {
    let root = here().join("../..");
    let text = std::fs::read_to_string(root.join("docs").join(page)).expect("the page");
    let (_, rest) = text.split_once("```sh\n").expect("a page begins with commands");
    let (commands, _) = rest.split_once("```").expect("an end");
    let library = library().to_str().expect("UTF-8");
    let mut commands = commands.to_owned();
    for (from, to) in [("scripts/c-library /usr/local", "true"), ("/usr/local", library)].iter().chain(more) {
        assert!(commands.contains(from), "{page} has no {from}");
        commands = commands.replace(from, to);
    }
    std::os::unix::fs::symlink(root.join("plugins"), directory.join("plugins")).expect("a link");
    succeed(Command::new("bash").args(["-euc", &commands]).current_dir(directory))
}

/// What pkg-config says of the library.
pub fn flags(more: &[&str]) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.env("PKG_CONFIG_PATH", library().join("lib/pkgconfig")).args(["--cflags", "--libs"]).args(more);
    succeed(command.arg("quire")).split_whitespace().map(str::to_owned).collect()
}
