// Runs commands from stdin: echoes to stdout or stderr, floods, or exits. Or serves HTTP.
package main

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
)

func main() {
	if len(os.Args) > 1 {
		serve(os.Args[1])
	}
	fmt.Println("listening")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		verb, rest, _ := strings.Cut(lines.Text(), " ")
		switch verb {
		case "cry":
			fmt.Fprintln(os.Stderr, rest)
		case "flood":
			flood(rest)
		case "exit":
			code, _ := strconv.ParseUint(rest, 10, 32)
			os.Exit(int(code))
		default:
			fmt.Println("heard", lines.Text())
		}
	}
	fmt.Println("no more input")
}

func flood(megabytes string) {
	many, _ := strconv.Atoi(megabytes)
	block := []byte(strings.Repeat("0123456789abcde\n", 4096))
	for i := 0; i < many*16; i++ {
		os.Stdout.Write(block)
	}
}

func serve(address string) {
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s from Windows", r.URL.Path)
	})
	listener, err := net.Listen("tcp", address)
	if err == nil {
		fmt.Println("serving")
		err = http.Serve(listener, nil)
	}
	fmt.Println(err)
	os.Exit(1)
}
