//! References in a step: plain text, computed, or a long form (language.md §7.5).

use std::sync::Arc;

use super::checker::{Checker, UnknownKey, join};
use crate::ast::{Reference, Template};
use crate::diagnostic::Class;
use crate::reference::{self, default_files, tag_or_latest, with_scheme};
use crate::yaml::{NodeKind, YamlEntry, YamlNode};

pub(crate) const GIT_KEYS: [&str; 4] = ["url", "rev", "dir", "file"];
pub(crate) const OCI_KEYS: [&str; 5] = ["registry", "repository", "tag", "dir", "file"];

impl Checker<'_> {
    /// Reads the value of `func` or `step`.
    pub(super) fn reference(&mut self, node: &YamlNode, path: &str) -> Option<Reference> {
        match &node.kind {
            NodeKind::Scalar(_) if node.describe() == "a string" => {
                let template = self.scalar_template(node, path)?;
                let Some(text) = template.as_literal() else { return Some(Reference::Dynamic(template)) };
                let parsed = reference::parse(text, self.file(), node.at);
                self.accept(parsed, path)
            }
            NodeKind::Mapping(entries) => self.long_form(node, entries, path),
            NodeKind::Scalar(_) | NodeKind::Sequence(_) => {
                self.wrong_type(node, path, "a reference (a string or a mapping with git or oci)");
                None
            }
        }
    }

    fn long_form(&mut self, node: &YamlNode, entries: &[YamlEntry], path: &str) -> Option<Reference> {
        let mut form = None;
        let mut known = true;
        for entry in entries {
            match entry.key.text.as_str() {
                "git" | "oci" if form.is_some() => {
                    self.error(
                        Class::Schema,
                        entry.key.at,
                        &join(path, &entry.key.text),
                        "only one of git, oci is allowed: remove the other",
                    );
                    known = false;
                }
                "git" | "oci" => form = Some(entry),
                _ => {
                    self.unknown_key(&entry.key, path, &["git", "oci"], UnknownKey::Refuse);
                    known = false;
                }
            }
        }
        let Some(entry) = form else {
            if known {
                self.error(Class::Schema, node.at, path, "one of git, oci is needed");
            }
            return None;
        };
        let path = join(path, &entry.key.text);
        let reference = if entry.key.text == "git" { self.git(entry, &path) } else { self.oci(entry, &path) };
        reference.filter(|_| known)
    }

    fn git(&mut self, entry: &YamlEntry, path: &str) -> Option<Reference> {
        let [url, rev, dir, file] = self.fields(&entry.value, path, GIT_KEYS)?;
        let (url, rev) = (self.required(url, entry, path, "url"), self.required(rev, entry, path, "rev"));
        let (dir, files) = (self.optional(dir, entry), self.files(file, entry));
        let url = self.accept(with_scheme(url?), &join(path, "url"));
        Some(Reference::Git { url: url?, rev: rev?, dir, files })
    }

    fn oci(&mut self, entry: &YamlEntry, path: &str) -> Option<Reference> {
        let [registry, repository, tag, dir, file] = self.fields(&entry.value, path, OCI_KEYS)?;
        let registry = self.required(registry, entry, path, "registry");
        let repository = self.required(repository, entry, path, "repository");
        if tag.is_none() {
            self.missing(entry, path, "tag");
        }
        let (dir, files) = (self.optional(dir, entry), self.files(file, entry));
        Some(Reference::Oci {
            registry: registry?,
            repository: repository?,
            tag: tag_or_latest(tag?),
            dir,
            files,
        })
    }

    /// Returns the string fields of a mapping in the order of `keys`; `None` if one is broken or unknown.
    fn fields<const N: usize>(
        &mut self,
        node: &YamlNode,
        path: &str,
        keys: [&str; N],
    ) -> Option<[Option<Template>; N]> {
        let mut fields = [const { None }; N];
        let mut intact = true;
        for entry in self.mapping(node, path)? {
            let slot =
                keys.iter().position(|key| *key == entry.key.text).and_then(|index| fields.get_mut(index));
            if let Some(slot) = slot {
                *slot = self.template(&entry.value, &join(path, &entry.key.text));
                intact &= slot.is_some();
            } else {
                self.unknown_key(&entry.key, path, &keys, UnknownKey::Refuse);
                intact = false;
            }
        }
        intact.then_some(fields)
    }

    fn required(
        &mut self,
        field: Option<Template>,
        entry: &YamlEntry,
        path: &str,
        key: &str,
    ) -> Option<Template> {
        match field {
            Some(template) if template.as_literal() == Some("") => {
                self.error(Class::Schema, template.at, &join(path, key), "expected a non-empty string");
                None
            }
            Some(template) => Some(template),
            None => {
                self.missing(entry, path, key);
                None
            }
        }
    }

    fn missing(&mut self, entry: &YamlEntry, path: &str, key: &str) {
        self.error(Class::Schema, entry.key.at, path, format!("\"{key}\" is missing"));
    }

    fn optional(&self, field: Option<Template>, entry: &YamlEntry) -> Template {
        field.unwrap_or_else(|| Template::literal("", self.file(), entry.value.at))
    }

    fn files(&self, field: Option<Template>, entry: &YamlEntry) -> Vec<Template> {
        let file: &Arc<str> = self.file();
        match field {
            Some(template) if template.as_literal() != Some("") => vec![template],
            _ => default_files()
                .into_iter()
                .map(|name| Template::literal(name, file, entry.value.at))
                .collect(),
        }
    }
}
