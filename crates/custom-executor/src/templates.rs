//! Expands the templates of directories: `--builds-dir`, `--cache-dir` (custom-executor.md §5). Pure.

use super::environment::JobVariables;

/// Error of a template. It never holds a value: variables of a job may be secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum TemplateError {
    #[error("a {{ without its }}")]
    Open,
    #[error(
        "unknown field {{{0}}}: use {{job_id}}, {{project_id}}, {{project_slug}}, {{concurrent_id}}, \
         {{concurrent_project_id}} or {{runner_short}}"
    )]
    Unknown(String),
    /// The variable of a field is absent or empty.
    #[error("the Runner gives no {1}, which {{{0}}} stands for")]
    Missing(&'static str, &'static str),
    /// A value that would change the shape of the path.
    #[error("the value of {1}, which {{{0}}} stands for, has a /, .. or control character")]
    Unfit(&'static str, &'static str),
    #[error("the directory is not absolute: begin it with /")]
    Relative,
}

/// Returns the directory that `template` stands for in this job.
pub(super) fn expand(template: &str, job: &JobVariables) -> Result<String, TemplateError> {
    let mut directory = String::new();
    let mut rest = template;
    while let Some((text, field)) = rest.split_once('{') {
        let (name, after) = field.split_once('}').ok_or(TemplateError::Open)?;
        directory.push_str(text);
        directory.push_str(value(name, job)?);
        rest = after;
    }
    directory.push_str(rest);
    if directory.starts_with('/') { Ok(directory) } else { Err(TemplateError::Relative) }
}

fn value<'a>(name: &str, job: &'a JobVariables) -> Result<&'a str, TemplateError> {
    let (field, variable, value) = match name {
        "job_id" => ("job_id", "CI_JOB_ID", &job.id),
        "project_id" => ("project_id", "CI_PROJECT_ID", &job.project_id),
        "project_slug" => ("project_slug", "CI_PROJECT_PATH_SLUG", &job.project_slug),
        "concurrent_id" => ("concurrent_id", "CI_CONCURRENT_ID", &job.concurrent_id),
        "concurrent_project_id" => {
            ("concurrent_project_id", "CI_CONCURRENT_PROJECT_ID", &job.concurrent_project_id)
        }
        "runner_short" => ("runner_short", "CI_RUNNER_SHORT_TOKEN", &job.runner_short),
        _ => return Err(TemplateError::Unknown(name.to_owned())),
    };
    if value.is_empty() {
        return Err(TemplateError::Missing(field, variable));
    }
    if value.contains('/') || value.contains("..") || value.chars().any(char::is_control) {
        return Err(TemplateError::Unfit(field, variable));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn job() -> JobVariables {
        JobVariables {
            id: "7".into(),
            project_id: "8".into(),
            project_slug: "group-app".into(),
            concurrent_id: "0".into(),
            concurrent_project_id: "1".into(),
            runner_short: "abcd".into(),
            ..JobVariables::default()
        }
    }

    #[test]
    fn every_field_is_filled_in() {
        let all =
            "/b/{job_id}/{project_id}/{project_slug}/{concurrent_id}/{concurrent_project_id}/{runner_short}";
        assert_eq!(expand(all, &job()).unwrap(), "/b/7/8/group-app/0/1/abcd");
        assert_eq!(expand("/plain", &job()).unwrap(), "/plain");
    }

    #[test]
    fn what_gives_no_directory_is_named() {
        use TemplateError::*;
        let field = |name: &str| Unknown(name.into());
        for (template, error) in [
            ("", Relative),
            ("builds", Relative),
            ("{job_id}/b", Relative),
            ("/b/{job_id", Open),
            ("/b/{nope}", field("nope")),
            ("/b/{}", field("")),
        ] {
            assert_eq!(expand(template, &job()).unwrap_err(), error, "{template}");
        }
        let absent = expand("/b/{runner_short}", &JobVariables::default()).unwrap_err();
        assert_eq!(absent, Missing("runner_short", "CI_RUNNER_SHORT_TOKEN"));
        assert!(absent.to_string().contains("CI_RUNNER_SHORT_TOKEN"), "{absent}");
    }

    proptest! {
        #[test]
        fn no_value_leaves_the_directory(slug in ".{0,12}") {
            let job = JobVariables { project_slug: slug.clone(), ..job() };
            match expand("/b/{project_slug}/c", &job) {
                Ok(directory) => {
                    prop_assert_eq!(directory, format!("/b/{slug}/c"));
                    prop_assert!(!slug.contains('/') && !slug.contains("..") && !slug.is_empty());
                }
                Err(error) => prop_assert!(slug.len() < 3 || !error.to_string().contains(&slug)),
            }
        }
    }
}
