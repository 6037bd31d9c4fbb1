// Command etcd runs one embedded etcd member on loopback: the storage of the tests' API server.
//
// It serves plain HTTP to clients on --client-url, keeps its data in --data-dir and stops
// cleanly on SIGTERM or SIGINT. It prints "ready" on stdout once it serves.
package main

import (
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
)

const startLimit = 60 * time.Second

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "etcd:", err)
		os.Exit(1)
	}
}

func run() error {
	dataDir := flag.String("data-dir", "", "directory for the data (required)")
	clientURL := flag.String("client-url", "http://127.0.0.1:2379", "where clients connect")
	peerURL := flag.String("peer-url", "http://127.0.0.1:2380", "where peers would connect")
	flag.Parse()
	if *dataDir == "" {
		return errors.New("--data-dir is required")
	}
	client, err := url.Parse(*clientURL)
	if err != nil {
		return err
	}
	peer, err := url.Parse(*peerURL)
	if err != nil {
		return err
	}

	config := embed.NewConfig()
	config.Name = "e2e"
	config.Dir = *dataDir
	config.LogLevel = "warn"
	config.WarningUnaryRequestDuration = embed.DefaultWarningUnaryRequestDuration
	config.ListenClientUrls = []url.URL{*client}
	config.AdvertiseClientUrls = []url.URL{*client}
	config.ListenPeerUrls = []url.URL{*peer}
	config.AdvertisePeerUrls = []url.URL{*peer}
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	config.UnsafeNoFsync = true // the data lives as long as one test run

	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)

	server, err := embed.StartEtcd(config)
	if err != nil {
		return err
	}
	defer server.Close()

	select {
	case <-server.Server.ReadyNotify():
		fmt.Println("ready")
	case <-stop:
		return nil
	case <-time.After(startLimit):
		return fmt.Errorf("not ready after %s", startLimit)
	}

	select {
	case <-stop:
		return nil
	case err := <-server.Err():
		return err
	}
}
