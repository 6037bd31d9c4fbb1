// Waits for a signal, prints it, and exits after a moment.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	heard := make(chan os.Signal, 1)
	signal.Notify(heard, syscall.SIGTERM, os.Interrupt)
	fmt.Println("waiting")
	fmt.Println("heard", <-heard)
	time.Sleep(200 * time.Millisecond)
	fmt.Println("bye")
	os.Exit(7)
}
