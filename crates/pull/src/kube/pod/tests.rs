use super::*;

fn container(image: &str) -> Container {
    Container {
        image: image.to_owned(),
        platform: None,
        policies: vec![PullPolicy::Always],
        user: None,
        entrypoint: None,
    }
}

fn wanted() -> Wanted {
    Wanted {
        build: container("alpine:3"),
        services: Vec::new(),
        logins: Vec::new(),
        build_folders: Vec::new(),
        cache_folders: Vec::new(),
        cache_volume: String::new(),
        builds_dir: "/builds".to_owned(),
        cache_dir: "/cache".to_owned(),
        amounts: Vec::new(),
        warnings: Vec::new(),
    }
}

fn plan<'p>(wanted: &'p Wanted, template: &'p Template) -> Plan<'p> {
    Plan {
        name: "step-aa",
        state: "mine",
        job: 7,
        wanted,
        template,
        program_image: "local/step-runner",
        lifetime: Duration::from_hours(1),
        serve: vec!["serve".to_owned()],
        spare: ("SPARE", "words".to_owned()),
        policy: 0,
        has_default_policy: true,
        has_logins: false,
    }
}

#[test]
fn a28_a_pod_without_a_template_has_what_a_job_needs() {
    let pod = plan(&wanted(), &Template::default()).pod().unwrap();
    let volumes = ["program", "run", "builds", "cache"];
    let volumes = volumes.map(|name| json!({"name": format!("step-runner-{name}"), "emptyDir": {}}));
    let wanted = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "step-aa",
            "labels": {"step-runner.state": "mine", "step-runner.job": "7", "step-runner.role": "build"},
            "annotations": {
                "cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true",
            },
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": 3600,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "terminationGracePeriodSeconds": 10,
            "initContainers": [{
                "name": "program",
                "image": "local/step-runner",
                "args": ["bootstrap", "/opt/step-runner"],
                "volumeMounts": [
                    {"name": "step-runner-program", "mountPath": "/opt/step-runner"},
                    {"name": "step-runner-run", "mountPath": "/opt/step-runner/run"},
                ],
            }],
            "containers": [{
                "name": "build",
                "image": "alpine:3",
                "imagePullPolicy": "Always",
                "args": ["/opt/step-runner/step-runner", "serve"],
                "env": [{"name": "SPARE", "value": "words"}],
                "volumeMounts": [
                    {"name": "step-runner-program", "mountPath": "/opt/step-runner", "readOnly": true},
                    {"name": "step-runner-run", "mountPath": "/opt/step-runner/run"},
                    {"name": "step-runner-builds", "mountPath": "/builds"},
                    {"name": "step-runner-cache", "mountPath": "/cache"},
                ],
            }],
            "volumes": volumes,
        },
    });
    assert_eq!(pod, wanted);
}

#[test]
fn a28_the_template_is_kept_but_for_what_is_the_job_s() {
    let template = Template::of(json!({
        "kind": "Pod",
        "metadata": {"name": "theirs", "namespace": "other", "labels": {"team": "a"}},
        "spec": {
            "nodeName": "n1",
            "restartPolicy": "Always",
            "automountServiceAccountToken": true,
            "volumes": [{"name": "kept", "persistentVolumeClaim": {"claimName": "kept"}}],
            "initContainers": [{"name": "warm", "image": "warm:1"}, {"name": "program", "imagePullPolicy": "Never"}],
            "containers": [
                {
                    "name": "build",
                    "image": "theirs:1",
                    "command": ["theirs"],
                    "imagePullPolicy": "Never",
                    "env": [{"name": "A", "value": "1"}],
                    "resources": {"requests": {"cpu": "1"}},
                    "volumeMounts": [{"name": "kept", "mountPath": "/cache/"}],
                },
                {"name": "service", "resources": {"limits": {"memory": "1Gi"}}},
            ],
        },
    }));
    let mut wanted = wanted();
    wanted.amounts = vec![(["requests", "cpu"], "2".to_owned()), (["limits", "memory"], "4Gi".to_owned())];
    wanted.services.push(Service {
        container: container("postgres:16"),
        command: vec!["-c".to_owned(), "a=$(B)".to_owned()],
        aliases: ["tutum__db", "DB", "db", "x.y"].map(str::to_owned).to_vec(),
        port: None,
        ports: vec![5432],
        variables: vec![("P".to_owned(), "$x".to_owned())],
    });
    let template = template.unwrap();
    let mut plan = plan(&wanted, &template);
    plan.has_logins = true;
    let pod = plan.pod().unwrap();
    let spec = &pod["spec"];
    assert_eq!(
        (&pod["metadata"]["name"], &pod["metadata"]["labels"]["team"]),
        (&json!("step-aa"), &json!("a"))
    );
    assert!(pod["metadata"]["namespace"].is_null());
    assert_eq!((&spec["nodeName"], &spec["restartPolicy"]), (&json!("n1"), &json!("Never")));
    assert_eq!(spec["automountServiceAccountToken"], true);
    assert_eq!(spec["imagePullSecrets"], json!([{"name": "step-aa"}]));
    assert_eq!(spec["hostAliases"], json!([{"ip": "127.0.0.1", "hostnames": ["db", "x.y"]}]));
    let names =
        |of: &Json| of.as_array().unwrap().iter().map(|found| found["name"].clone()).collect::<Vec<_>>();
    assert_eq!(names(&spec["initContainers"]), ["program", "warm"]);
    assert_eq!(spec["initContainers"][0]["imagePullPolicy"], "Never");
    assert_eq!(names(&spec["containers"]), ["build", "svc-0"]);
    let (build, service) = (&spec["containers"][0], &spec["containers"][1]);
    assert_eq!((&build["image"], &build["imagePullPolicy"]), (&json!("alpine:3"), &json!("Never")));
    assert!(build["command"].is_null());
    assert_eq!(names(&build["env"]), ["A", "SPARE"]);
    assert_eq!(build["resources"], json!({"requests": {"cpu": "2"}, "limits": {"memory": "4Gi"}}));
    assert_eq!(
        names(&build["volumeMounts"]),
        ["kept", "step-runner-program", "step-runner-run", "step-runner-builds"]
    );
    // The cluster would replace `$(B)`.
    assert_eq!((&service["args"], &service["env"][0]["value"]), (&json!(["-c", "a=$$(B)"]), &json!("$$x")));
    assert_eq!(service["resources"], json!({"limits": {"memory": "1Gi"}}));
    assert_eq!(names(&service["volumeMounts"]), ["step-runner-builds"]);
}

#[test]
fn a28_an_entrypoint_stays_unless_another_is_given() {
    let words = |entrypoint: Option<&[&str]>| {
        let mut wanted = wanted();
        wanted.build.entrypoint =
            entrypoint.map(|words| words.iter().map(|word| (*word).to_owned()).collect());
        let pod = plan(&wanted, &Template::default()).pod().unwrap();
        let build = &pod["spec"]["containers"][0];
        (build["command"].clone(), build["args"].clone())
    };
    let program = "/opt/step-runner/step-runner";
    assert_eq!(words(None), (json!(null), json!([program, "serve"])));
    assert_eq!(words(Some(&[""])), (json!([program, "serve"]), json!(null)));
    assert_eq!(words(Some(&["a", "b"])), (json!(["a", "b"]), json!([program, "serve"])));
}

#[test]
fn a28_users_of_pods_are_numbers() {
    let user = |user: &str| {
        let mut wanted = wanted();
        wanted.build.user = Some(user.to_owned());
        let pod = plan(&wanted, &Template::default()).pod()?;
        Ok::<_, String>(pod["spec"]["containers"][0]["securityContext"].clone())
    };
    assert_eq!(user("1000").unwrap(), json!({"runAsUser": 1000}));
    assert_eq!(user("1000:5").unwrap(), json!({"runAsUser": 1000, "runAsGroup": 5}));
    assert!(user("root").unwrap_err().contains("numbers"));
}

#[test]
fn a28_pull_policies_come_one_after_the_other_and_the_entry_s_before_the_template_s() {
    let template =
        Template::of(json!({"spec": {"containers": [{"name": "build", "imagePullPolicy": "Never"}]}}))
            .unwrap();
    let mut wanted = wanted();
    wanted.build.policies = vec![PullPolicy::Always, PullPolicy::IfNotPresent];
    let policy = |number: usize| {
        let mut plan = plan(&wanted, &template);
        (plan.policy, plan.has_default_policy) = (number, false);
        plan.pod().unwrap()["spec"]["containers"][0]["imagePullPolicy"].clone()
    };
    assert_eq!([policy(0), policy(1), policy(2)], ["Always", "IfNotPresent", "IfNotPresent"]);
}

#[test]
fn a_template_with_other_containers_is_refused() {
    for wrong in [
        json!([]),
        json!({"kind": "Deployment"}),
        json!({"spec": []}),
        json!({"spec": {"containers": [{"name": "other"}]}}),
        json!({"spec": {"containers": {}}}),
        json!({"spec": {"volumes": {}}}),
    ] {
        assert!(Template::of(wrong.clone()).is_err(), "{wrong}");
    }
}

#[test]
fn a29_logins_stand_in_a_secret_of_the_same_name() {
    let logins = json!({"registry.test/a": {"auth": "dTpw"}});
    let secret = secret("step-aa", "mine", 7, &logins);
    assert_eq!(
        (&secret["metadata"]["name"], &secret["metadata"]["labels"]["step-runner.state"]),
        (&json!("step-aa"), &json!("mine"))
    );
    assert_eq!(secret["stringData"][".dockerconfigjson"], json!({"auths": logins}).to_string());
}
