//! Resolves a revision on a remote: tag, branch, commit hash, prefix of one, in this order (language.md §7.3).

use std::collections::BTreeSet;

use gix::ObjectId;
use gix::hash::Prefix;
use gix::protocol::handshake::Ref;

/// Fewest digits of a commit hash's prefix.
const MIN_DIGITS: usize = 8;

/// A revision as written, sorted by what it can mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Revision {
    /// A full commit hash. It never means a tag or branch of this name: a pinned commit must be that commit.
    Commit(ObjectId),
    /// A tag or branch, or else a prefix of a commit hash.
    Name(String, Option<Prefix>),
}

/// Meaning of a revision according to a remote's references.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RevisionMeaning {
    /// This commit.
    Commit(ObjectId),
    /// No reference matches, but it may be the hash prefix of a commit that no reference names.
    Search(Prefix),
    /// A hash prefix of several commits.
    Ambiguous,
    /// Nothing.
    Unknown,
}

impl Revision {
    /// Parses a revision; `None` if it cannot be one.
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

    /// Returns name prefixes of the references that are needed to resolve it.
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

    /// Resolves the revision among `references`. `HEAD` is the remote's default branch, unless a tag or branch has that
    /// name.
    pub(super) fn meaning(&self, references: &[Ref]) -> RevisionMeaning {
        let (name, prefix) = match self {
            Self::Commit(id) => return RevisionMeaning::Commit(*id),
            Self::Name(name, prefix) => (name, prefix),
        };
        let head = (name == "HEAD").then(|| name.clone());
        let names = [Some(format!("refs/tags/{name}")), Some(format!("refs/heads/{name}")), head];
        for wanted in names.into_iter().flatten() {
            if let Some((_, id)) = tips(references).find(|(name, _)| *name == wanted.as_bytes()) {
                return RevisionMeaning::Commit(id);
            }
        }
        let Some(prefix) = *prefix else { return RevisionMeaning::Unknown };
        let begins = |id: &ObjectId| prefix.cmp_oid(id).is_eq();
        let found: BTreeSet<_> = tips(references).map(|(_, id)| id).filter(begins).collect();
        match (found.first(), found.len()) {
            (None, _) => RevisionMeaning::Search(prefix),
            (Some(id), 1) => RevisionMeaning::Commit(*id),
            _ => RevisionMeaning::Ambiguous,
        }
    }
}

/// Returns full names of references with their objects. Tags are followed.
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

    fn meaning(text: &str) -> RevisionMeaning {
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
        Revision::parse(text).map_or(RevisionMeaning::Unknown, |revision| revision.meaning(&references))
    }

    #[test]
    fn tags_come_before_branches_and_branches_before_hashes() {
        assert_eq!(meaning("v1"), RevisionMeaning::Commit(id("d4")));
        assert_eq!(meaning("main"), RevisionMeaning::Commit(id("a1")));
        assert_eq!(meaning("HEAD"), RevisionMeaning::Commit(id("a1")));
        assert_eq!(meaning("deadbeef"), RevisionMeaning::Commit(id("c3")));
        assert_eq!(meaning("mai"), RevisionMeaning::Unknown);
        assert_eq!(meaning("refs/heads/main"), RevisionMeaning::Unknown);
    }

    #[test]
    fn a_hash_needs_all_or_at_least_eight_digits() {
        let full = id("0123456789ab").to_string();
        assert_eq!(meaning(&full), RevisionMeaning::Commit(id("0123456789ab")));
        assert_eq!(meaning(&full.to_uppercase()), RevisionMeaning::Commit(id("0123456789ab")));
        assert_eq!(meaning("0123456789A"), RevisionMeaning::Commit(id("0123456789ab")));
        assert_eq!(meaning("01234567"), RevisionMeaning::Ambiguous);
        assert_eq!(meaning("0123456"), RevisionMeaning::Unknown);
        assert!(matches!(meaning("76543210"), RevisionMeaning::Search(_)));
    }

    #[test]
    fn a_branch_that_is_called_like_a_full_hash_does_not_stand_for_it() {
        let full = id("a1").to_string();
        let references = [direct(&format!("refs/heads/{full}"), "b2")];
        assert_eq!(Revision::parse(&full).unwrap().meaning(&references), RevisionMeaning::Commit(id("a1")));
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
