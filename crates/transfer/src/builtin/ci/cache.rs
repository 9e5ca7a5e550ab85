//! `ci/cache/restore` and `ci/cache/save`, with a folder of this machine as the store: each key is a folder below it.

use std::fs;
use std::path::Path;

use serde_json::Value as Json;
use sha2::{Digest, Sha256};

use super::super::{BuiltinEnvironment, BuiltinError, BuiltinValues};
use super::selection::{self, Selection, Wanted};
use super::store::{file_name, gone, hex};
use super::{counted, field, is_wanted, list, texts, transfer, wanted, warn};
use step_runner_process::git;

/// Most bytes of a key, as of the name of a file once it is encoded.
const KEY_LIMIT: usize = 255;

/// Copies caches into the project: of each the first key that is there.
pub(crate) fn restore(
    inputs: &BuiltinValues,
    environment: &BuiltinEnvironment<'_>,
) -> Result<BuiltinValues, BuiltinError> {
    let store = super::store(inputs)?;
    let last = inputs.get("fallback_key").and_then(Json::as_str).filter(|key| !key.is_empty());
    for cache in list(inputs, "caches").iter().filter(|cache| field(cache, "policy") != "push") {
        let own = key(cache, &environment.work_dir)?;
        if let Some(why) = unusable(&own) {
            warn(environment, &format!("cache {}: {why}: it is left out", own.escape_debug()));
            continue;
        }
        let keys = std::iter::once(own.clone()).chain(texts(cache, "fallback_keys"));
        let found = keys.chain(last.map(str::to_owned)).find_map(|key| {
            let folder = store.join(unusable(&key).is_none().then(|| file_name(&key))?);
            folder.is_dir().then_some((key, folder))
        });
        let Some((key, folder)) = found else {
            (environment.say)(&format!("Cache {}: there is none yet", own.escape_debug()));
            continue;
        };
        let all = Wanted { paths: vec![".".to_owned()], ..Wanted::default() };
        let Selection { paths, .. } = selection::select(&folder, &all)?;
        transfer::copy(paths.iter(), &folder, &environment.work_dir, environment)?;
        (environment.say)(&format!("Cache {}: {} restored", key.escape_debug(), counted(paths.len())));
    }
    Ok(BuiltinValues::new())
}

/// Copies files of the project to caches. A cache is replaced when the new one is complete.
pub(crate) fn save(
    inputs: &BuiltinValues,
    environment: &BuiltinEnvironment<'_>,
) -> Result<BuiltinValues, BuiltinError> {
    let store = super::store(inputs)?;
    let status = super::super::text(inputs, "status")?;
    let saved = |cache: &&Json| field(cache, "policy") != "pull" && is_wanted(field(cache, "when"), status);
    for cache in list(inputs, "caches").iter().filter(saved) {
        let key = key(cache, &environment.work_dir)?;
        if let Some(why) = unusable(&key) {
            warn(environment, &format!("cache {}: {why}: it is left out", key.escape_debug()));
            continue;
        }
        let Selection { paths, .. } = selection::select(&environment.work_dir, &wanted(cache))?;
        if paths.is_empty() {
            warn(environment, &format!("cache {}: no file is there, so none is saved", key.escape_debug()));
            continue;
        }
        let folder = store.join(file_name(&key));
        // Jobs may save the same key at the same time: each has a folder of its own until it is complete.
        let new = store.join(format!("{}.{}", NEW, std::process::id()));
        gone(fs::remove_dir_all(&new)).map_err(BuiltinError::file("remove", &new))?;
        fs::create_dir_all(&new).map_err(BuiltinError::file("make the folder", &new))?;
        transfer::copy(paths.iter(), &environment.work_dir, &new, environment)?;
        gone(fs::remove_dir_all(&folder)).map_err(BuiltinError::file("remove", &folder))?;
        fs::rename(&new, &folder).map_err(BuiltinError::file("write", &folder))?;
        (environment.say)(&format!("Cache {}: {} saved", key.escape_debug(), counted(paths.len())));
    }
    Ok(BuiltinValues::new())
}

/// Start of the name of a cache that is not complete. No key has it: a dot at the start is encoded.
const NEW: &str = ".new";

/// Returns why no cache can have this key.
fn unusable(key: &str) -> Option<&'static str> {
    if key.is_empty() {
        return Some("its key is empty");
    }
    (file_name(key).len() > KEY_LIMIT).then_some("its key is too long")
}

/// Returns the key of a cache: a text, or what files of the project give.
fn key(cache: &Json, project: &Path) -> Result<String, BuiltinError> {
    let Some(key) = cache.get("key").filter(|key| key.is_object()) else {
        return Ok(field(cache, "key").to_owned());
    };
    let globs =
        Wanted { paths: [texts(key, "files"), texts(key, "files_commits")].concat(), ..Wanted::default() };
    let files = selection::select(project, &globs)?.paths;
    let by_commits = key.get("files_commits").is_some();
    let mut hash = Sha256::new();
    let mut is_known = false;
    for path in &files {
        let content = if by_commits {
            git::ask(project, &["log", "-1", "--format=%H", "--", path]).filter(|commit| !commit.is_empty())
        } else {
            let file = project.join(path);
            Some(fs::read(&file).map_err(BuiltinError::file("read", &file))?)
        };
        if let Some(content) = content {
            is_known = true;
            hash.update(Sha256::digest(&content));
        }
    }
    let hash = if is_known { hex(&hash.finalize()) } else { "default".to_owned() };
    Ok(match field(key, "prefix") {
        "" => hash,
        prefix => format!("{prefix}-{hash}"),
    })
}
