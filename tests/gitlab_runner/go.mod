// For scripts/gitlab-runner: GitLab Runner as a library of nothing. It has no go.mod of its own at this version; these are the
// versions of what it was released with.
module runner

go 1.16

require (
	gitlab.com/gitlab-org/gitlab-runner v12.5.0+incompatible
	cloud.google.com/go v0.49.0
	cloud.google.com/go/storage v1.0.0
	github.com/Azure/go-autorest/autorest v0.9.2
	github.com/Azure/go-autorest/autorest/adal v0.8.0
	github.com/Azure/go-autorest/autorest/date v0.2.0
	github.com/Azure/go-autorest/logger v0.1.0
	github.com/Azure/go-autorest/tracing v0.5.0
	github.com/BurntSushi/toml v0.3.1
	github.com/Nvveen/Gotty v0.0.0-20120604004816-cd527374f1e5
	github.com/ayufan/golang-kardianos-service v0.0.0-20160429143213-0c8eb6d8fff2
	github.com/beorn7/perks v1.0.1
	github.com/containerd/continuity v0.0.0-20181203112020-004b46473808
	github.com/davecgh/go-spew v1.1.1
	github.com/dgrijalva/jwt-go v3.2.0+incompatible
	github.com/docker/cli v0.0.0-20181219132003-336b2a5cac7f
	github.com/docker/distribution v2.7.0+incompatible
	github.com/docker/docker v1.4.2-0.20190822180741-9552f2b2fdde
	github.com/docker/docker-credential-helpers v0.4.1
	github.com/docker/go-connections v0.3.0
	github.com/docker/go-metrics v0.0.0-20181218153428-b84716841b82
	github.com/docker/go-units v0.3.2-0.20160802145505-eb879ae3e2b8
	github.com/docker/machine v0.7.1-0.20170120224952-7b7a141da844
	github.com/docker/spdystream v0.0.0-20160310174837-449fdfce4d96
	github.com/fullsailor/pkcs7 v0.0.0-20190404230743-d7302db945fa
	github.com/getsentry/raven-go v0.0.0-20160518204710-dffeb57df75d
	github.com/go-ini/ini v1.28.2
	github.com/gofrs/flock v0.7.2-0.20190320160742-5135e617513b
	github.com/gogo/protobuf v1.1.1
	github.com/golang/protobuf v1.3.2
	github.com/google/gofuzz v1.0.0
	github.com/googleapis/gax-go/v2 v2.0.5
	github.com/googleapis/gnostic v0.1.0
	github.com/gophercloud/gophercloud v0.0.0-20180425001159-e25975f29734
	github.com/gorhill/cronexpr v0.0.0-20160318121724-f0984319b442
	github.com/gorilla/mux v1.3.1-0.20170228224354-599cba5e7b61
	github.com/gorilla/websocket v1.4.0
	github.com/hashicorp/golang-lru v0.5.1
	github.com/imdario/mergo v0.3.7
	github.com/jpillora/backoff v0.0.0-20170222002228-06c7a16c845d
	github.com/json-iterator/go v1.1.7
	github.com/kardianos/osext v0.0.0-20160811001526-c2c54e542fb7
	github.com/kr/pty v1.1.1
	github.com/markelog/trie v0.0.0-20171230083431-098fa99650c0
	github.com/mattn/go-zglob v0.0.1
	github.com/matttproud/golang_protobuf_extensions v1.0.1
	github.com/minio/go-homedir v0.0.0-20190425115525-017018655514
	github.com/minio/minio-go v3.0.3-0.20170912212908-4e0f567303d4+incompatible
	github.com/modern-go/concurrent v0.0.0-20180306012644-bacd9c7ef1dd
	github.com/modern-go/reflect2 v1.0.1
	github.com/opencontainers/go-digest v1.0.0-rc1
	github.com/opencontainers/image-spec v1.0.1
	github.com/opencontainers/runc v1.0.0-rc6.0.20190115182101-c1e454b2a1bf
	github.com/pkg/errors v0.8.0
	github.com/pmezard/go-difflib v1.0.0
	github.com/prometheus/client_golang v1.1.0
	github.com/prometheus/client_model v0.0.0-20190129233127-fd36f4220a90
	github.com/prometheus/common v0.6.0
	github.com/prometheus/procfs v0.0.5
	github.com/sirupsen/logrus v1.4.2
	github.com/spf13/pflag v1.0.1-0.20171106142849-4c012f6dcd95
	github.com/stretchr/objx v0.1.1
	github.com/stretchr/testify v1.3.0
	github.com/tevino/abool v0.0.0-20160628101133-3c25f2fe7cd0
	github.com/urfave/cli v1.20.0
	gitlab.com/ayufan/golang-cli-helpers v0.0.0-20171103152739-a7cf72d604cd
	gitlab.com/gitlab-org/gitlab-terminal v0.0.0-20180924111848-5af59b871b1b
	go.opencensus.io v0.22.0
	golang.org/x/crypto v0.0.0-20190605123033-f99c8df09eb5
	golang.org/x/net v0.0.0-20190620200207-3b0461eec859
	golang.org/x/oauth2 v0.0.0-20190604053449-0f29369cfe45
	golang.org/x/sys v0.0.0-20190801041406-cbf593c0f2f3
	golang.org/x/text v0.3.2
	golang.org/x/time v0.0.0-20190308202827-9d24e82272b4
	google.golang.org/api v0.14.0
	google.golang.org/genproto v0.0.0-20191115194625-c23dd37a84c9
	google.golang.org/grpc v1.21.1
	gopkg.in/inf.v0 v0.9.0
	gopkg.in/yaml.v2 v2.2.4
	k8s.io/api v0.0.0-20191004102349-159aefb8556b
	k8s.io/apimachinery v0.0.0-20191004074956-c5d2f014d689
	k8s.io/client-go v11.0.1-0.20191004102930-01520b8320fc+incompatible
	k8s.io/klog v1.0.0
	k8s.io/utils v0.0.0-20190923111123-69764acb6e8e
	sigs.k8s.io/yaml v1.1.0
)

replace (
	github.com/docker/docker => github.com/docker/engine v1.4.2-0.20190822180741-9552f2b2fdde
	github.com/minio/go-homedir => gitlab.com/steveazz/go-homedir v0.0.0-20190425115525-017018655514
)
