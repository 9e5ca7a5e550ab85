// Command reference-client runs the same jobs on two servers, the reference's and ours, through the reference's client.
// It prints the differences that the client sees, and compares them with the list of known differences:
//
//	reference-client LIST THEIRS OURS
//
// LIST is the page with the list. THEIRS and OURS are folders with the socket step-runner.sock, the server's working
// directory work, and its temporary directory tmp. The exit code is 1 if the list and the observed differences differ.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// key names one fact about one case.
type key struct{ name, fact string }

// values are the values of a fact on both servers, as observed or as listed.
type values struct{ theirs, ours string }

func main() {
	if len(os.Args) != 4 {
		fail(fmt.Errorf("usage: reference-client LIST THEIRS OURS"))
	}
	listed, err := readList(os.Args[1])
	fail(err)
	theirs, err := observe(os.Args[2])
	fail(err)
	ours, err := observe(os.Args[3])
	fail(err)

	keys := make([]key, 0, len(theirs))
	for seen := range theirs {
		keys = append(keys, seen)
	}
	for seen := range ours {
		if _, both := theirs[seen]; !both {
			keys = append(keys, seen)
		}
	}
	slices.SortFunc(keys, func(a, b key) int { return strings.Compare(a.name+"\x00"+a.fact, b.name+"\x00"+b.fact) })

	misses, differences := 0, 0
	fmt.Println("| job | what the client sees | reference | here |")
	fmt.Println("|---|---|---|---|")
	for _, seen := range keys {
		run := key{seen.name, runCode}
		if seen != run && theirs[run] != ours[run] {
			continue
		}
		found := values{shown(theirs, seen), shown(ours, seen)}
		kept, isListed := listed[seen]
		delete(listed, seen)
		if found.theirs == found.ours && !isListed {
			continue
		}
		verdict := ""
		switch {
		case found.theirs == found.ours:
			verdict = " LISTED, BUT NO DIFFERENCE"
		case !isListed:
			verdict = " NOT LISTED"
		case kept != found:
			verdict = fmt.Sprintf(" LISTED AS %s / %s", kept.theirs, kept.ours)
		}
		if verdict != "" {
			misses++
		}
		differences++
		fmt.Printf("| %s | %s | %s | %s |%s\n", seen.name, seen.fact, found.theirs, found.ours, verdict)
	}
	for seen := range listed {
		misses++
		fmt.Printf("LISTED, BUT NEVER LOOKED AT: %s, %s\n", seen.name, seen.fact)
	}
	fmt.Printf("reference client: %d things compared, %d differ, %d not as listed\n", len(keys), differences, misses)
	if misses > 0 {
		os.Exit(1)
	}
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "reference-client:", err)
		os.Exit(2)
	}
}

// readList reads the rows of the page's table of jobs: job, fact, reference, here, why.
func readList(path string) (map[key]values, error) {
	page, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	_, rest, found := strings.Cut(string(page), "| job | what the client sees |")
	if !found {
		return nil, fmt.Errorf("%s has no table of jobs", path)
	}
	listed := map[key]values{}
	for _, line := range strings.Split(rest, "\n")[2:] {
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		if !strings.HasPrefix(line, "| ") {
			break
		}
		if len(cells) != 5 {
			return nil, fmt.Errorf("%s: a row without five cells: %s", path, line)
		}
		listed[key{cells[0], cells[1]}] = values{cells[2], cells[3]}
	}
	return listed, nil
}

// shown returns a value as a table cell.
func shown(seen map[key]string, key key) string {
	value, found := seen[key]
	if !found {
		return "not there"
	}
	return "`" + strings.NewReplacer("|", "¦", "`", "'", "\n", "⏎", "\r", "␍").Replace(value) + "`"
}

// server is one of the two servers, with the facts observed about it.
type server struct {
	folder string
	conn   *grpc.ClientConn
	seen   map[key]string
}

func observe(folder string) (map[key]string, error) {
	folder, err := filepath.Abs(folder)
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient(
		"unix:"+filepath.Join(folder, "step-runner.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
	)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	on := &server{folder: folder, conn: conn, seen: map[key]string{}}
	for _, one := range cases() {
		if err := one.look(on, one.name); err != nil {
			return nil, fmt.Errorf("%s: %w", one.name, err)
		}
	}
	return on.seen, nil
}

var (
	known       = regexp.MustCompile(`\(known: [^)]*\)`)
	stepOutputs = regexp.MustCompile(`TMPDIR/step-runner-output-[^/\s]+`)
	logTime     = regexp.MustCompile(`^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d `)
)

// note records a fact. It replaces folders, ids and other parts that always differ.
func (s *server) note(name, fact, value string) {
	value = strings.ReplaceAll(value, filepath.Join(s.folder, "tmp"), "TMPDIR")
	value = strings.ReplaceAll(value, s.folder, "FOLDER")
	value = known.ReplaceAllString(value, "(known: NAMES)")
	value = stepOutputs.ReplaceAllString(value, "TMPDIR/step-runner-output-ID")
	value = logTime.ReplaceAllString(value, "")
	s.seen[key{name, fact}] = value
}
