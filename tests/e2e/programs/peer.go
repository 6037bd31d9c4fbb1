// Serves HTTP on a port, responding with its name and the client's address; or sends a request to a
// port or a named pipe, or resolves a name.
//
// datagram.exe, next to it, handles UDP: Wine lacks an ioctl that Go's UDP sockets need.
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"time"
)

const patience = 10 * time.Second

func main() {
	var err error
	switch {
	case len(os.Args) == 3 && os.Args[1] == "serve":
		err = serve(os.Args[2])
	case len(os.Args) == 3 && os.Args[1] == "ask":
		err = ask(os.Args[2])
	default:
		err = fmt.Errorf("peer serve PORT | peer ask http://HOST:PORT | dns://NAME | pipe://NAME")
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func greeting(client string) string {
	name, _ := os.Hostname()
	return fmt.Sprintf("%s heard %s", name, client[:strings.LastIndex(client, ":")])
}

func serve(port string) error {
	if err := exec.Command("C:\\datagram.exe", "serve", port).Start(); err != nil {
		return err
	}
	listener, err := net.Listen("tcp4", ":"+port)
	if err != nil {
		return err
	}
	fmt.Println("serving")
	return http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, greeting(r.RemoteAddr))
	}))
}

func ask(text string) error {
	target, err := url.Parse(text)
	if err != nil {
		return err
	}
	if target.Scheme == "dns" {
		return resolve(target.Host)
	}
	if target.Scheme == "pipe" {
		return talk(`\\.\pipe\` + target.Host)
	}
	client := http.Client{Timeout: patience}
	answer, err := client.Get(text)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, err = io.Copy(os.Stdout, answer.Body)
	return err
}

func talk(pipe string) error {
	opened, err := os.OpenFile(pipe, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer opened.Close()
	fmt.Fprintln(opened, "hello")
	answer, err := io.ReadAll(opened)
	os.Stdout.Write(answer)
	return err
}

func resolve(name string) error {
	found, err := net.LookupIP(name)
	for _, address := range found {
		fmt.Println(address)
	}
	return err
}
