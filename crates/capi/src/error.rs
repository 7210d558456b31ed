//! How a failure reaches C: a negative error number, and a text that its thread can ask for.
//!
//! Invariant: no panic leaves a function of this crate. A panic is a defect of the library, and nobody knows
//! what it left half done, so it has a number that nothing else gives, `ENOTRECOVERABLE`.
//!
//! Neighbours: every function of the border that can fail runs inside [`status`] or [`count`].

use quire::{Error, Result};
use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    /// What failed last on this thread.
    static MESSAGE: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// Keeps the text for the thread.
pub(crate) fn remember(message: &str) {
    let bytes: Vec<u8> = message.bytes().filter(|&byte| byte != 0).collect();
    let message = CString::new(bytes).ok();
    // A thread that is ending has no messages any more; nobody can ask for one then.
    let _ = MESSAGE.try_with(|last| *last.borrow_mut() = message);
}

/// A failure as C sees it.
#[derive(Debug)]
pub(crate) struct Failure {
    /// Negative.
    pub(crate) number: c_int,
    pub(crate) message: String,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure { number: -error.errno(), message: error.to_string() }
    }
}

/// Runs what may panic.
pub(crate) fn catch<T>(body: impl FnOnce() -> Result<T>) -> std::result::Result<T, Failure> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(outcome) => outcome.map_err(Failure::from),
        Err(panic) => {
            let said = text_of(&*panic);
            let message = format!("Quire panicked: {said}; close the volume, and report this as a defect");
            // What was thrown may panic again when it is dropped.
            std::mem::forget(panic);
            Err(Failure { number: -libc::ENOTRECOVERABLE, message })
        }
    }
}

/// Runs the body of a function of the border.
fn guard<T>(body: impl FnOnce() -> Result<T>) -> std::result::Result<T, c_int> {
    catch(body).map_err(|failure| {
        remember(&failure.message);
        failure.number
    })
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text,
        _ => "for a reason without words",
    }
}

/// Runs what gives 0 or a negative error number.
pub(crate) fn status(body: impl FnOnce() -> Result<()>) -> c_int {
    match guard(body) {
        Ok(()) => 0,
        Err(number) => number,
    }
}

/// Runs what gives a small number or a negative error number.
pub(crate) fn number(body: impl FnOnce() -> Result<c_int>) -> c_int {
    guard(body).unwrap_or_else(|number| number)
}

/// Runs what gives a count or an offset, or a negative error number.
pub(crate) fn count(body: impl FnOnce() -> Result<u64>) -> i64 {
    let counted = || {
        i64::try_from(body()?)
            .map_err(|_| Error::new(quire::ErrorKind::Overflow, "the result is past 2^63 - 1"))
    };
    guard(counted).unwrap_or_else(i64::from)
}

/// Runs what cannot fail, but might panic.
pub(crate) fn quietly(body: impl FnOnce()) {
    let _ = guard(|| {
        body();
        Ok(())
    });
}

/// The text of what failed last on this thread: what was being done, to what, and why it failed.
///
/// Returns: a text, never NULL; empty if nothing has failed on this thread. It belongs to the library, and is
/// valid until the next call of another function of this library on this thread, or the thread's end.
/// Threads: any; each has its own text.
#[unsafe(no_mangle)]
pub extern "C" fn quire_error_message() -> *const c_char {
    MESSAGE
        .try_with(|last| last.borrow().as_ref().map_or(c"".as_ptr(), |text| text.as_ptr()))
        .unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;
    use quire::ErrorKind;
    use std::ffi::CStr;

    fn message() -> String {
        // SAFETY: the library's text, of this thread.
        unsafe { CStr::from_ptr(quire_error_message()) }.to_str().expect("UTF-8").to_owned()
    }

    #[test]
    fn failures_and_panics_become_numbers_with_a_text() {
        assert_eq!((status(|| Ok(())), message().as_str()), (0, ""));
        let lost = || Err(Error::new(ErrorKind::NotFound, "opening a\0b: no such name"));
        assert_eq!((status(lost), message().as_str()), (-libc::ENOENT, "opening ab: no such name"));
        assert_eq!(count(|| Ok(7)), 7);
        assert_eq!(message(), "opening ab: no such name", "a success leaves the text as it is");
        assert_eq!(count(|| Ok(u64::MAX)), i64::from(-libc::EOVERFLOW));
        assert_eq!(count(|| panic!("block {} is gone", 7)), i64::from(-libc::ENOTRECOVERABLE));
        assert!(message().starts_with("Quire panicked: block 7 is gone; "), "{}", message());
        quietly(|| std::panic::panic_any(12));
        assert!(message().contains("without words"), "{}", message());
        std::thread::spawn(|| assert_eq!(message(), "")).join().expect("another thread has its own text");
    }
}
