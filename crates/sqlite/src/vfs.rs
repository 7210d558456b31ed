//! The VFS `quire`: the default VFS, with other files for databases that can commit in groups and for their
//! journals.
//!
//! A file of this VFS is [`HEAD`] bytes, followed by the file of the VFS below. Files that are nothing
//! special (of temporary databases, write-ahead logs, super-journals, hot journals) are files of the VFS
//! below throughout.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use crate::capture;
use crate::database::{self, Database, Way};
use crate::ffi::{self, Api, File, IoMethods, SystemCall, Vfs};
use crate::image;
use crate::journal::{self, Journal};
use crate::mount;
use crate::super_journal;

/// Bytes before the file of the VFS below: methods and state.
pub(crate) const HEAD: usize = 16;

#[repr(C)]
struct Head {
    methods: *const IoMethods,
    state: *mut c_void,
}

const _: () = assert!(size_of::<Head>() <= HEAD && align_of::<Head>() <= 8);

/// The state of a file.
///
/// # Safety
///
/// `file` is one of this VFS, made with [`put`].
pub(crate) unsafe fn state(file: *mut File) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { (*file.cast::<Head>()).state }
}

/// Makes a file of this VFS.
///
/// # Safety
///
/// `room` has room for a file of this VFS.
pub(crate) unsafe fn put(room: *mut File, methods: &'static IoMethods, state: *mut c_void) {
    // SAFETY: the caller's promise; SQLite's memory is aligned for any type.
    unsafe { room.cast::<Head>().write(Head { methods, state }) }
}

/// The file of the VFS below, in a file of this one.
///
/// # Safety
///
/// `room` has room for a file of this VFS.
pub(crate) unsafe fn below(room: *mut File) -> *mut File {
    // SAFETY: the caller's promise.
    unsafe { room.byte_add(HEAD) }
}

/// What the VFS's functions need.
struct Context {
    api: Api,
    below: *mut Vfs,
    /// The VFS of files in volumes that nobody has mounted.
    image: *mut Vfs,
}

impl Context {
    /// The VFS below for a file's full path, which may be null.
    ///
    /// # Safety
    ///
    /// `name` is null or ends with a zero byte.
    unsafe fn below_of(&self, name: *const c_char) -> *mut Vfs {
        // SAFETY: the caller's promise.
        match !name.is_null() && image::is_in_image(unsafe { CStr::from_ptr(name) }) {
            true => self.image,
            false => self.below,
        }
    }
}

/// Registers the VFS and makes it the default; a second time does nothing.
///
/// # Errors
///
/// A text that says why it cannot be.
pub(crate) fn register(api: Api) -> Result<(), String> {
    const NAME: &CStr = c"quire";
    if api.version() < ffi::VERSION_MIN {
        return Err(format!("SQLite is too old ({}); at least 3.32 is needed", api.version()));
    }
    database::group_max()?;
    // SAFETY: VFSs are never freed while they are registered.
    unsafe {
        if !api.find_vfs(NAME.as_ptr()).is_null() {
            return Ok(());
        }
        let base = api.default_vfs();
        if base.is_null() {
            return Err("SQLite has no default VFS".into());
        }
        if !capture::hook(base) {
            return Err("the default VFS does not open files by system calls of its own; load the extension before others".into());
        }
        // Both live as long as the process: the extension is never unloaded.
        let context = Box::leak(Box::new(Context { api, below: base, image: image::vfs(base) }));
        api.keep();
        let vfs = Box::leak(Box::new(Vfs {
            version: (*base).version.min(3),
            file_size: HEAD as c_int + (*base).file_size,
            // Also what a full path into a volume may have: the VFS below has buffers of this size on its
            // stack, and SQLite has memory of it for the names of journals.
            path_max: (*base).path_max,
            next: ptr::null_mut(),
            name: NAME.as_ptr(),
            data: ptr::from_mut(context).cast(),
            open,
            delete,
            access,
            full_path,
            dl_open: Some(dl_open),
            dl_error: Some(dl_error),
            dl_sym: Some(dl_sym),
            dl_close: Some(dl_close),
            randomness,
            sleep,
            current_time,
            last_error: Some(last_error),
            current_time_int64: Some(current_time_int64),
            set_system_call: Some(set_system_call),
            get_system_call: Some(get_system_call),
            next_system_call: Some(next_system_call),
        }));
        match api.register(vfs, true) {
            ffi::OK => Ok(()),
            failed => Err(format!("SQLite refuses the VFS (error {failed})")),
        }
    }
}

/// # Safety
///
/// `vfs` is the one that [`register`] made.
unsafe fn context<'a>(vfs: *mut Vfs) -> &'a Context {
    // SAFETY: the caller's promise; the context is never freed.
    unsafe { &*(*vfs).data.cast::<Context>() }
}

// SAFETY, for all functions below: SQLite calls them with the VFS that `register` made, and with arguments as
// its documentation says.

unsafe extern "C" fn open(
    vfs: *mut Vfs,
    name: *const c_char,
    file: *mut File,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    // SAFETY: see above.
    unsafe {
        let context = context(vfs);
        let (api, base) = (context.api, context.below_of(name));
        let has = |wanted: c_int| flags & wanted == wanted;
        if !name.is_null() && has(ffi::OPEN_MAIN_JOURNAL | ffi::OPEN_CREATE | ffi::OPEN_READWRITE) {
            // One that is to be rolled back is opened without CREATE.
            if let Some(database) = Database::for_journal(api.database_of(name)) {
                if !out_flags.is_null() {
                    *out_flags = flags;
                }
                Journal::open(file, base, name, flags, database);
                return ffi::OK;
            }
        }
        if name.is_null() || !has(ffi::OPEN_MAIN_DB | ffi::OPEN_READWRITE) {
            let opened = ((*base).open)(base, name, file, flags, out_flags);
            if opened == ffi::OK && has(ffi::OPEN_SUPER_JOURNAL | ffi::OPEN_CREATE) {
                super_journal::watch(file, ptr::eq(base, context.image));
            }
            return opened;
        }
        (*file).methods = ptr::null();
        let inner = below(file);
        (*inner).methods = ptr::null();
        let mut given = flags;
        let (opened, descriptor) = capture::during(CStr::from_ptr(name), || {
            ((*base).open)(base, name, inner, flags, &raw mut given)
        });
        if !out_flags.is_null() {
            *out_flags = given;
        }
        if opened != ffi::OK {
            // SQLite asks that a file whose opening failed be closed if it has methods.
            if let Some(methods) = (*inner).methods.as_ref() {
                (methods.close)(inner);
            }
            return opened;
        }
        let way = match (image::handle(inner), descriptor) {
            _ if given & ffi::OPEN_READWRITE == 0 => None,
            (Some(handle), _) => Some(Way::Image(handle)),
            (None, Some(descriptor)) if mount::can_group(descriptor) => Some(Way::Mount(descriptor)),
            _ => None,
        };
        Database::open(file, api, way);
        ffi::OK
    }
}

unsafe extern "C" fn delete(vfs: *mut Vfs, name: *const c_char, sync_directory: c_int) -> c_int {
    // SAFETY: see above.
    unsafe {
        let base = context(vfs).below_of(name);
        let sync_directory = c_int::from(journal::was_kept(CStr::from_ptr(name)) || sync_directory != 0);
        match ((*base).delete)(base, name, sync_directory) {
            ffi::IOERR_DELETE_NOENT if journal::was_in_memory(CStr::from_ptr(name)) => ffi::OK,
            done => done,
        }
    }
}

unsafe extern "C" fn access(vfs: *mut Vfs, name: *const c_char, flags: c_int, out: *mut c_int) -> c_int {
    // SAFETY: see above.
    unsafe {
        let base = context(vfs).below_of(name);
        ((*base).access)(base, name, flags, out)
    }
}

unsafe extern "C" fn full_path(vfs: *mut Vfs, name: *const c_char, room: c_int, out: *mut c_char) -> c_int {
    // SAFETY: see above.
    unsafe {
        let context = context(vfs);
        match image::full_path(context.api, name) {
            None => ((*context.below).full_path)(context.below, name, room, out),
            Some(Ok(full)) if full.as_bytes_with_nul().len() <= room as usize => {
                let full = full.as_bytes_with_nul();
                out.copy_from_nonoverlapping(full.as_ptr().cast(), full.len());
                ffi::OK
            }
            Some(Ok(_)) => image::told(ffi::CANTOPEN, "the path of image and file is too long"),
            Some(Err(why)) => image::told(ffi::CANTOPEN, &why),
        }
    }
}

unsafe extern "C" fn dl_open(vfs: *mut Vfs, name: *const c_char) -> *mut c_void {
    // SAFETY: see above.
    unsafe {
        let base = context(vfs).below;
        (*base).dl_open.map_or(ptr::null_mut(), |open| open(base, name))
    }
}

unsafe extern "C" fn dl_error(vfs: *mut Vfs, room: c_int, out: *mut c_char) {
    // SAFETY: see above.
    unsafe {
        let base = context(vfs).below;
        if let Some(error) = (*base).dl_error {
            error(base, room, out);
        }
    }
}

unsafe extern "C" fn dl_sym(vfs: *mut Vfs, library: *mut c_void, name: *const c_char) -> SystemCall {
    // SAFETY: see above.
    unsafe {
        let base = context(vfs).below;
        (*base).dl_sym.and_then(|symbol| symbol(base, library, name))
    }
}

unsafe extern "C" fn dl_close(vfs: *mut Vfs, library: *mut c_void) {
    // SAFETY: see above.
    unsafe {
        let base = context(vfs).below;
        if let Some(close) = (*base).dl_close {
            close(base, library);
        }
    }
}

unsafe extern "C" fn randomness(vfs: *mut Vfs, count: c_int, out: *mut c_char) -> c_int {
    // SAFETY: see above.
    unsafe {
        let base = context(vfs).below;
        ((*base).randomness)(base, count, out)
    }
}

unsafe extern "C" fn sleep(vfs: *mut Vfs, microseconds: c_int) -> c_int {
    // SAFETY: see above.
    unsafe {
        let base = context(vfs).below;
        ((*base).sleep)(base, microseconds)
    }
}

unsafe extern "C" fn current_time(vfs: *mut Vfs, out: *mut f64) -> c_int {
    // SAFETY: see above.
    unsafe {
        let base = context(vfs).below;
        ((*base).current_time)(base, out)
    }
}

unsafe extern "C" fn last_error(vfs: *mut Vfs, room: c_int, out: *mut c_char) -> c_int {
    // SAFETY: see above.
    unsafe {
        let base = context(vfs).below;
        (*base).last_error.map_or(0, |error| error(base, room, out))
    }
}

unsafe extern "C" fn current_time_int64(vfs: *mut Vfs, out: *mut i64) -> c_int {
    // SAFETY: see above; a VFS of version 1 has no such member.
    unsafe {
        let base = context(vfs).below;
        match (*base).version {
            2.. => (*base).current_time_int64.map_or(ffi::ERROR, |time| time(base, out)),
            _ => ffi::ERROR,
        }
    }
}

unsafe extern "C" fn set_system_call(vfs: *mut Vfs, name: *const c_char, function: SystemCall) -> c_int {
    // SAFETY: see above; the VFS below is of version 3, or `capture::hook` had refused it.
    unsafe {
        let base = context(vfs).below;
        (*base).set_system_call.map_or(ffi::NOTFOUND, |set| set(base, name, function))
    }
}

unsafe extern "C" fn get_system_call(vfs: *mut Vfs, name: *const c_char) -> SystemCall {
    // SAFETY: as above.
    unsafe {
        let base = context(vfs).below;
        (*base).get_system_call.and_then(|get| get(base, name))
    }
}

unsafe extern "C" fn next_system_call(vfs: *mut Vfs, name: *const c_char) -> *const c_char {
    // SAFETY: as above.
    unsafe {
        let base = context(vfs).below;
        (*base).next_system_call.map_or(ptr::null(), |next| next(base, name))
    }
}
