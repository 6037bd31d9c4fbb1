// Prints the platform and arguments that a Go program sees, and exits with 7.
package main

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

func main() {
	random := make([]byte, 8)
	if _, err := rand.Read(random); err != nil {
		panic(err)
	}
	place := filepath.Join(os.TempDir(), "from-go.txt")
	if err := os.WriteFile(place, []byte("written"), 0o600); err != nil {
		panic(err)
	}
	fmt.Printf("Go on %s/%s, %d arguments: %q\n",
		runtime.GOOS, runtime.GOARCH, len(os.Args)-1, os.Args[1:])
	os.Exit(7)
}
