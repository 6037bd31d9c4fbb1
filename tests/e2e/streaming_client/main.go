// A Kubernetes client reduced to its streams: client-go's own executors and port-forwarder, pointed
// at a URL. Standard streams are passed through; the outcome is written to the report as JSON.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"

	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/client-go/util/exec"
)

var (
	transport = flag.String("transport", "spdy", "spdy or websocket")
	protocols = flag.String("protocols", "", "offered instead of the client's own, with commas")
	stdin     = flag.Bool("stdin", false, "send standard input")
	stdout    = flag.Bool("stdout", false, "receive standard output")
	stderr    = flag.Bool("stderr", false, "receive standard error")
	tty       = flag.Bool("tty", false, "ask for a terminal")
	sizes     = flag.Int("sizes", 0, "a descriptor with sizes of the terminal, each 80x24 on a line")
	report    = flag.String("report", "", "the file that the outcome is written to")
)

type outcome struct {
	Error string `json:"error"`
	Code  int    `json:"code"`
}

func main() {
	flag.Parse()
	var err error
	switch verb := flag.Arg(0); verb {
	case "command":
		err = command(flag.Arg(1))
	case "forward":
		err = forward(flag.Arg(1), flag.Args()[2:])
	default:
		err = fmt.Errorf("unknown verb %q", verb)
	}
	told := outcome{}
	if err != nil {
		told.Error = err.Error()
		var exit exec.CodeExitError
		if errors.As(err, &exit) {
			told.Code = exit.Code
		}
	}
	text, _ := json.Marshal(told)
	if err := os.WriteFile(*report, text, 0o600); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// command runs an exec or an attach.
func command(target string) error {
	executor, err := newExecutor(target)
	if err != nil {
		return err
	}
	options := remotecommand.StreamOptions{Tty: *tty}
	if *stdin {
		options.Stdin = os.Stdin
	}
	if *stdout {
		options.Stdout = os.Stdout
	}
	if *stderr {
		options.Stderr = os.Stderr
	}
	if *tty {
		told := os.NewFile(uintptr(*sizes), "sizes")
		options.TerminalSizeQueue = &sizeQueue{told: bufio.NewScanner(told)}
	}
	return executor.StreamWithContext(context.Background(), options)
}

func newExecutor(target string) (remotecommand.Executor, error) {
	parsed, err := url.Parse(target)
	if err != nil {
		return nil, err
	}
	offered := strings.FieldsFunc(*protocols, func(r rune) bool { return r == ',' })
	if *transport == "websocket" {
		if len(offered) == 0 {
			return remotecommand.NewWebSocketExecutor(&rest.Config{}, http.MethodGet, target)
		}
		return remotecommand.NewWebSocketExecutorForProtocols(&rest.Config{}, http.MethodGet, target, offered...)
	}
	if len(offered) == 0 {
		return remotecommand.NewSPDYExecutor(&rest.Config{}, http.MethodPost, parsed)
	}
	tripper, upgrader, err := spdy.RoundTripperFor(&rest.Config{})
	if err != nil {
		return nil, err
	}
	return remotecommand.NewSPDYExecutorForProtocols(tripper, upgrader, http.MethodPost, parsed, offered...)
}

type sizeQueue struct{ told *bufio.Scanner }

func (q *sizeQueue) Next() *remotecommand.TerminalSize {
	size := remotecommand.TerminalSize{}
	if !q.told.Scan() {
		return nil
	}
	if _, err := fmt.Sscanf(q.told.Text(), "%dx%d", &size.Width, &size.Height); err != nil {
		return nil
	}
	return &size
}

// forward forwards ports until standard input ends; it prints the local port of each.
func forward(target string, ports []string) error {
	parsed, err := url.Parse(target)
	if err != nil {
		return err
	}
	dialer, err := newDialer(parsed)
	if err != nil {
		return err
	}
	stop, ready := make(chan struct{}), make(chan struct{})
	forwarder, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, ports, stop, ready, nil, os.Stderr)
	if err != nil {
		return err
	}
	go func() {
		<-ready
		forwarded, err := forwarder.GetPorts()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		for _, port := range forwarded {
			fmt.Println(port.Local)
		}
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(stop)
	}()
	return forwarder.ForwardPorts()
}

func newDialer(target *url.URL) (httpstream.Dialer, error) {
	if *transport == "websocket" {
		return portforward.NewSPDYOverWebsocketDialer(target, &rest.Config{})
	}
	tripper, upgrader, err := spdy.RoundTripperFor(&rest.Config{})
	if err != nil {
		return nil, err
	}
	return spdy.NewDialer(upgrader, &http.Client{Transport: tripper}, http.MethodPost, target), nil
}
