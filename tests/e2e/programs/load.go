// Allocates the given number of megabytes, and keeps one processor busy, forever.
package main

import (
	"fmt"
	"os"
	"strconv"
)

func main() {
	megabytes, _ := strconv.Atoi(os.Args[1])
	held := make([]byte, megabytes<<20)
	fmt.Println("holding", megabytes)
	for i := 0; ; i = (i + 4096) % len(held) {
		held[i]++
	}
}
