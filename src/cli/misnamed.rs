//! Definition files whose names are nearly right.

use std::path::Path;

use crate::lang::reference::DEFINITION_FILES;

/// Finds a file in `folder` whose name is nearly that of a definition file. Returns its name and the right one.
pub(super) fn misnamed(folder: &Path) -> Option<(String, &'static str)> {
    let nearly =
        |name: &str| name.strip_suffix(".yml").map(|stem| [format!("{stem}.yaml"), format!("{stem}.YML")]);
    let names = DEFINITION_FILES
        .into_iter()
        .flat_map(|name| nearly(name).into_iter().flatten().map(move |near| (near, name)));
    names.into_iter().find(|(near, _)| folder.join(near).is_file())
}

/// Returns the advice to rename a misnamed definition file, if `folder` has one.
pub(super) fn rename(folder: &Path) -> Option<String> {
    let (found, name) = misnamed(folder)?;
    Some(format!("there is a {found}, which is not looked for: rename it to {name}"))
}
