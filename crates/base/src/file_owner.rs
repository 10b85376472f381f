//! Opens and creates files. A file that root creates belongs to the owner of its folder, so that
//! the gateway can use it after a command that root ran. Errors name the path and its owner.
//!
//! This file must not depend on the content of a file.

use rustix::fs::{Gid, Uid, fchown};
use std::fs::{DirBuilder, File, Metadata, OpenOptions, ReadDir};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::Path;

/// Mode of the gateway's folders.
const FOLDER_MODE: u32 = 0o700;

/// Opens a file with these options, which may create it.
///
/// # Errors
/// Returns an error if the file cannot be opened.
pub fn open(options: &OpenOptions, path: &Path) -> io::Result<File> {
    let open = || {
        let file = options.open(path)?;
        give_to_folder_owner(&file, path)?;
        Ok(file)
    };
    open().map_err(|error| explain(path, &error))
}

/// Creates a folder with mode 0700, and missing folders above it.
///
/// # Errors
/// Returns an error if a folder cannot be created.
pub fn create_dir(dir: &Path) -> io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    if let Some(above) = dir.parent().filter(|above| !above.as_os_str().is_empty()) {
        create_dir(above)?;
    }
    let create = || match DirBuilder::new().mode(FOLDER_MODE).create(dir) {
        // Another process has created the folder first.
        Err(error) if error.kind() == ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        Err(error) => Err(error),
        Ok(()) => give_to_folder_owner(&File::open(dir)?, dir),
    };
    create().map_err(|error| explain(dir, &error))
}

/// Renames a file or a folder.
///
/// # Errors
/// Returns an error if it cannot be renamed.
pub fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
    std::fs::rename(&from, to).map_err(|error| explain(from.as_ref(), &error))
}

/// Lists a folder.
///
/// # Errors
/// Returns an error if the folder cannot be read.
pub fn read_dir(dir: &Path) -> io::Result<ReadDir> {
    std::fs::read_dir(dir).map_err(|error| explain(dir, &error))
}

/// Changes the owner of a file that root has just created to the owner of its folder.
fn give_to_folder_owner(file: &File, path: &Path) -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let (opened, folder) = (file.metadata()?, std::fs::metadata(folder(path))?);
    // The owner of the folder may have put a link in place of the file. The target of a link must
    // keep its owner.
    let named = std::fs::symlink_metadata(path)?;
    let is_there = (named.dev(), named.ino()) == (opened.dev(), opened.ino());
    if is_there && is_only_name(&opened) && opened.uid() == 0 && folder.uid() != 0 {
        let (owner, group) = (Uid::from_raw(folder.uid()), Gid::from_raw(folder.gid()));
        // A container may have taken this right from root. The file then belongs to root.
        let _ = fchown(file, Some(owner), Some(group));
    }
    Ok(())
}

fn is_only_name(file: &Metadata) -> bool {
    file.is_dir() || file.is_file() && file.nlink() == 1
}

fn folder(path: &Path) -> &Path {
    let folder = path.parent().unwrap_or(path);
    match folder.as_os_str().is_empty() {
        true => Path::new("."),
        false => folder,
    }
}

/// Returns the error with the path. If a permission is missing, the text also names the owner of
/// the path, or of the nearest folder above it, and the user of this process.
pub fn explain(path: &Path, error: &io::Error) -> io::Error {
    let shown = path.display();
    let is_refused = error.kind() == ErrorKind::PermissionDenied;
    let owner = path
        .ancestors()
        .find_map(|there| Some((there, std::fs::metadata(there).ok()?.uid())));
    let message = match owner {
        Some((there, owner)) if is_refused => {
            let what = match there == path {
                true => "it".to_owned(),
                false => there.display().to_string(),
            };
            let user = rustix::process::geteuid().as_raw();
            format!(
                "{shown}: {error}; {what} belongs to user ID {owner}, this process has user ID {user}"
            )
        }
        _ => format!("{shown}: {error}"),
    };
    io::Error::new(error.kind(), message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{OpenOptionsExt as _, chown, symlink};

    const SERVICE: u32 = 12_345;

    fn create(path: &Path) -> io::Result<File> {
        open(
            OpenOptions::new().write(true).create(true).mode(0o600),
            path,
        )
    }

    fn owner(path: &Path) -> (u32, u32) {
        let metadata = std::fs::symlink_metadata(path).unwrap();
        (metadata.uid(), metadata.gid())
    }

    /// Needs root: nobody else can give a file away.
    #[test]
    fn what_root_creates_belongs_to_the_owner_of_its_folder() {
        if !rustix::process::geteuid().is_root() {
            return test_world::skip("only root can create files for others");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        create(&path("of-root")).unwrap();
        assert_eq!(owner(&path("of-root")), (0, 0), "its folder is root's");
        chown(dir.path(), Some(SERVICE), Some(SERVICE)).unwrap();
        create(&path("new")).unwrap();
        create_dir(&path("folders/inner")).unwrap();
        create(&path("folders/inner/new")).unwrap();
        for name in ["new", "folders", "folders/inner", "folders/inner/new"] {
            assert_eq!(owner(&path(name)), (SERVICE, SERVICE), "{name}");
        }
        // Links of the folder's owner to what is not theirs.
        let foreign = tempfile::tempdir().unwrap();
        let (by_link, by_name) = (foreign.path().join("link"), foreign.path().join("name"));
        for file in [&by_link, &by_name] {
            std::fs::write(file, "").unwrap();
        }
        symlink(&by_link, path("link")).unwrap();
        std::fs::hard_link(&by_name, path("name")).unwrap();
        create(&path("link")).unwrap();
        create(&path("name")).unwrap();
        assert_eq!([owner(&by_link), owner(&by_name)], [(0, 0); 2]);
    }

    #[test]
    fn an_error_names_the_path_and_who_owns_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("none/file");
        let error = create(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().starts_with(&path.display().to_string()));
        let user = rustix::process::geteuid().as_raw();
        let refused = explain(&path, &ErrorKind::PermissionDenied.into()).to_string();
        assert!(
            refused.ends_with(&format!(
                "{} belongs to user ID {user}, this process has user ID {user}",
                dir.path().display()
            )),
            "{refused}"
        );
    }
}
