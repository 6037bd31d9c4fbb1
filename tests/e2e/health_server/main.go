// Server for startup, readiness and liveness probes over HTTP, TCP and gRPC. Its state is the
// content of a file that is polled.
//
// HTTP serves /started, /ready and /live on one port, gRPC has services of these names on another.
// TCP has a port for each probe, and listens on it while the probe should succeed.
package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	pb "google.golang.org/grpc/health/grpc_health_v1"
)

const (
	stateFile = "C:\\state\\state"
	httpPort  = 8080
	grpcPort  = 9090
)

var tcpPorts = map[string]int{"started": 7001, "ready": 7002, "live": 7003}

var well = map[string][]string{
	"starting": {"live"},
	"ready":    {"started", "ready", "live"},
	"busy":     {"started", "live"},
	"dead":     {"started", "ready"},
}

func main() {
	var err error
	switch kind := os.Args[1]; kind {
	case "http":
		err = serveHTTP()
	case "tcp":
		err = serveTCP()
	case "grpc":
		err = serveGRPC()
	default:
		err = fmt.Errorf("health http | tcp | grpc")
	}
	fmt.Println(err)
	os.Exit(1)
}

func isWell(what string) bool {
	state, _ := os.ReadFile(stateFile)
	for _, one := range well[strings.TrimSpace(string(state))] {
		if one == what {
			return true
		}
	}
	return false
}

func serveHTTP() error {
	answer := func(w http.ResponseWriter, r *http.Request) {
		if !isWell(strings.TrimPrefix(r.URL.Path, "/")) {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}
	listener, err := net.Listen("tcp4", fmt.Sprintf(":%d", httpPort))
	if err != nil {
		return err
	}
	return http.Serve(listener, http.HandlerFunc(answer))
}

func serveTCP() error {
	open := map[string]net.Listener{}
	for ; ; time.Sleep(100 * time.Millisecond) {
		for what, port := range tcpPorts {
			listener := open[what]
			if isWell(what) == (listener != nil) {
				continue
			}
			if listener != nil {
				listener.Close()
				delete(open, what)
				continue
			}
			listener, err := net.Listen("tcp4", fmt.Sprintf(":%d", port))
			if err != nil {
				return err
			}
			open[what] = listener
			go accept(listener)
		}
	}
}

func accept(listener net.Listener) {
	for {
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		connection.Close()
	}
}

func serveGRPC() error {
	listener, err := net.Listen("tcp4", fmt.Sprintf(":%d", grpcPort))
	if err != nil {
		return err
	}
	told := health.NewServer()
	go func() {
		for ; ; time.Sleep(100 * time.Millisecond) {
			for what := range tcpPorts {
				status := pb.HealthCheckResponse_NOT_SERVING
				if isWell(what) {
					status = pb.HealthCheckResponse_SERVING
				}
				told.SetServingStatus(what, status)
			}
		}
	}()
	server := grpc.NewServer()
	pb.RegisterHealthServer(server, told)
	return server.Serve(listener)
}
