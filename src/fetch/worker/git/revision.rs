//! What a revision means on a remote: tag, branch, commit hash, beginning of one, in this order (language.md §7.3).

use std::collections::BTreeSet;

use gix::ObjectId;
use gix::hash::Prefix;
use gix::protocol::handshake::Ref;

/// Fewest digits of the beginning of a commit hash.
const MIN_DIGITS: usize = 8;

/// A revision as written, taken for what it may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Revision {
    /// A full commit hash. It never means a tag or branch of this name: whoever pins a commit gets that commit.
    Commit(ObjectId),
    /// A tag or branch; else the beginning of a commit hash.
    Name(String, Option<Prefix>),
}

/// What a remote's references say about a revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// This commit.
    Commit(ObjectId),
    /// Nothing; it may be the beginning of the hash of a commit that no reference names.
    Search(Prefix),
    /// The beginning of the hashes of several commits.
    Ambiguous,
    /// Nothing.
    Unknown,
}

impl Revision {
    /// `None` for what can be no revision.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_hex && let Ok(id) = ObjectId::from_hex(text.to_ascii_lowercase().as_bytes()) {
            return Some(Self::Commit(id));
        }
        if text.starts_with('-') || gix::validate::reference::name_partial(text.into()).is_err() {
            return None;
        }
        let prefix = if is_hex && text.len() >= MIN_DIGITS { Prefix::from_hex(text).ok() } else { None };
        Some(Self::Name(text.to_owned(), prefix))
    }

    /// Beginnings of the names of the references that are needed to say what it means.
    pub(super) fn wanted_references(&self) -> Vec<String> {
        match self {
            Self::Commit(_) => Vec::new(),
            Self::Name(_, Some(_)) => ["refs/tags/", "refs/heads/"].map(str::to_owned).into(),
            Self::Name(name, None) => {
                let mut wanted = vec![format!("refs/tags/{name}"), format!("refs/heads/{name}")];
                wanted.extend((name == "HEAD").then(|| name.clone()));
                wanted
            }
        }
    }

    /// What it means where `references` are. `HEAD` is the remote's default branch, unless there is a tag or branch of
    /// that name.
    pub(super) fn meaning(&self, references: &[Ref]) -> Meaning {
        let (name, prefix) = match self {
            Self::Commit(id) => return Meaning::Commit(*id),
            Self::Name(name, prefix) => (name, prefix),
        };
        let head = (name == "HEAD").then(|| name.clone());
        let names = [Some(format!("refs/tags/{name}")), Some(format!("refs/heads/{name}")), head];
        for wanted in names.into_iter().flatten() {
            if let Some((_, id)) = tips(references).find(|(name, _)| *name == wanted.as_bytes()) {
                return Meaning::Commit(id);
            }
        }
        let Some(prefix) = *prefix else { return Meaning::Unknown };
        let begins = |id: &ObjectId| prefix.cmp_oid(id).is_eq();
        let found: BTreeSet<_> = tips(references).map(|(_, id)| id).filter(begins).collect();
        match (found.first(), found.len()) {
            (None, _) => Meaning::Search(prefix),
            (Some(id), 1) => Meaning::Commit(*id),
            _ => Meaning::Ambiguous,
        }
    }
}

/// Full names of references and what they mean; tags are followed.
pub(super) fn tips(references: &[Ref]) -> impl Iterator<Item = (&[u8], ObjectId)> {
    references.iter().filter_map(|reference| {
        let (name, id, followed) = reference.unpack();
        Some((name.as_ref(), followed.or(id)?.to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> ObjectId {
        ObjectId::from_hex(format!("{text:0<40}").as_bytes()).unwrap()
    }

    fn direct(name: &str, object: &str) -> Ref {
        Ref::Direct { full_ref_name: name.into(), object: id(object) }
    }

    fn meaning(text: &str) -> Meaning {
        let references = [
            Ref::Symbolic {
                full_ref_name: "HEAD".into(),
                target: "refs/heads/main".into(),
                tag: None,
                object: id("a1"),
            },
            direct("refs/heads/main", "a1"),
            direct("refs/heads/v1", "b2"),
            direct("refs/heads/deadbeef", "c3"),
            direct("refs/heads/one", "0123456789ab"),
            direct("refs/heads/two", "0123456789cd"),
            direct("refs/tags/main-1", "e5"),
            direct("refs/tags/same", "0123456789ab"),
            Ref::Peeled { full_ref_name: "refs/tags/v1".into(), tag: id("f6"), object: id("d4") },
        ];
        Revision::parse(text).map_or(Meaning::Unknown, |revision| revision.meaning(&references))
    }

    #[test]
    fn tags_come_before_branches_and_branches_before_hashes() {
        assert_eq!(meaning("v1"), Meaning::Commit(id("d4")));
        assert_eq!(meaning("main"), Meaning::Commit(id("a1")));
        assert_eq!(meaning("HEAD"), Meaning::Commit(id("a1")));
        assert_eq!(meaning("deadbeef"), Meaning::Commit(id("c3")));
        assert_eq!(meaning("mai"), Meaning::Unknown);
        assert_eq!(meaning("refs/heads/main"), Meaning::Unknown);
    }

    #[test]
    fn a_hash_needs_all_or_at_least_eight_digits() {
        let full = id("0123456789ab").to_string();
        assert_eq!(meaning(&full), Meaning::Commit(id("0123456789ab")));
        assert_eq!(meaning(&full.to_uppercase()), Meaning::Commit(id("0123456789ab")));
        assert_eq!(meaning("0123456789A"), Meaning::Commit(id("0123456789ab")));
        assert_eq!(meaning("01234567"), Meaning::Ambiguous);
        assert_eq!(meaning("0123456"), Meaning::Unknown);
        assert!(matches!(meaning("76543210"), Meaning::Search(_)));
    }

    #[test]
    fn a_branch_that_is_called_like_a_full_hash_does_not_stand_for_it() {
        let full = id("a1").to_string();
        let references = [direct(&format!("refs/heads/{full}"), "b2")];
        assert_eq!(Revision::parse(&full).unwrap().meaning(&references), Meaning::Commit(id("a1")));
    }

    #[test]
    fn fault_68_what_can_be_no_reference_is_no_revision() {
        for text in
            ["", "-v1", "--all", "a b", "a\nref-prefix x", "a\0", "a..b", "v1^{commit}", "main~1", "@{-1}"]
        {
            assert_eq!(Revision::parse(text), None, "{text:?}");
        }
    }
}
