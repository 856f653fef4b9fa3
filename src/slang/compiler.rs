//! The Slang compiler, linked in.

use std::ffi::CString;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use shader_slang::{
    CompileTarget, CompilerOptions, FloatingPointMode, GlobalSession, OptimizationLevel, Session,
    SessionDesc, TargetDesc,
};

use super::library::Library;
use super::module::Module;
use crate::error::{Error, Result};

/// The Slang compiler. Making one takes a moment; it compiles any number of files.
///
/// It stays on its thread; the kernels that it makes do not depend on it.
pub struct Compiler {
    session: GlobalSession,
    heap_slots: Option<u32>,
}

impl Compiler {
    /// Starts the compiler.
    ///
    /// # Errors
    /// [`Error::Slang`] when it does not start.
    pub fn new() -> Result<Self> {
        let session = GlobalSession::new().ok_or_else(|| Error::Slang {
            file: "the Slang compiler".into(),
            message: "does not start".into(),
        })?;
        Ok(Self { session, heap_slots: None })
    }

    /// Gives the heap that the module `storage` declares a size: GPU-assisted validation sees accesses out of a tensor's
    /// bounds then, and else does not. The runtime must hold fewer tensors than that.
    pub fn with_heap_slots(mut self, slots: u32) -> Self {
        self.heap_slots = Some(slots);
        self
    }

    /// The compiler's version.
    pub fn version(&self) -> &str {
        self.session.build_tag_string()
    }

    /// Compiles a file, as far as that goes without an entry point.
    ///
    /// # Errors
    /// [`Error::Slang`] when the file cannot be read, and with all that the compiler has to say of it, with files and
    /// lines.
    pub fn load(&self, file: &Path) -> Result<Module> {
        let shown = file.display().to_string();
        let refused = |message: String| Error::Slang { file: shown.clone(), message };
        let (folder, name) = parts(file).map_err(refused)?;
        let library = Library::unpack().map_err(|error| refused(error.to_string()))?;
        let modules = text(library.folder()).map_err(refused)?;
        let session = self.session_for(&[folder, modules]).map_err(refused)?;
        let module = session.load_module(&name).map_err(|error| refused(said(&error)))?;
        // By now all that it imports has been read, and the folder may go.
        Ok(Module::new(shown, self.session.clone(), session, module))
    }

    /// A session with the flags of `build/compile.rs` that looks for modules in these folders.
    fn session_for(&self, folders: &[CString]) -> Result<Session, String> {
        let mut options = CompilerOptions::default()
            .floating_point_mode(FloatingPointMode::Precise)
            .optimization(OptimizationLevel::None)
            .vulkan_use_entry_point_name(true)
            .emit_spirv_directly(true)
            .skip_spirv_validation(true)
            // The heap, which a kernel and `storage` may both declare.
            .disable_warning("39001");
        if let Some(slots) = self.heap_slots {
            options = options.macro_define("HEAP_SLOTS", &slots.to_string());
        }
        let targets = [TargetDesc::default()
            .format(CompileTarget::Spirv)
            .profile(self.session.find_profile("spirv_1_5"))
            .options(&options)];
        let folders: Vec<_> = folders.iter().map(|folder| folder.as_ptr()).collect();
        let desc =
            SessionDesc::default().targets(&targets).search_paths(&folders).options(&options);
        self.session.create_session(&desc).ok_or_else(|| "the compiler makes no session".into())
    }
}

/// What the compiler says, without its saying that it stops there.
fn said(error: &shader_slang::Error) -> String {
    const STOPS: &str = "\nerror[E39999]: import failed due to compilation error\nfatal error";
    let text = error.to_string();
    let faults = text.split_once(STOPS).map_or(text.as_str(), |(faults, _)| faults);
    faults.trim_end_matches(['\0', '\n']).into()
}

/// The folder of a Slang file, and its name there.
fn parts(file: &Path) -> Result<(CString, String), String> {
    if file.extension().is_none_or(|extension| extension != "slang") {
        return Err("expected a file called NAME.slang".into());
    }
    // Opened here, as the compiler does not say why it cannot be.
    let readable = File::open(file).and_then(|mut file| file.read(&mut [0]));
    readable.map_err(|error| error.to_string())?;
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    let name = file.file_name().and_then(|name| name.to_str()).ok_or("its name is not UTF-8")?;
    Ok((text(folder.unwrap_or(Path::new(".")))?, name.into()))
}

fn text(path: &Path) -> Result<CString, String> {
    let text = path.to_str().ok_or_else(|| format!("{}: is not UTF-8", path.display()))?;
    CString::new(text).map_err(|error| error.to_string())
}
