// The part of tar that kubectl cp needs, which Windows' own images have: `cf - NAME`, `xmf - -C TO`.
package main

import (
	"archive/tar"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	var err error
	if strings.Contains(os.Args[1], "c") {
		err = create(os.Args[len(os.Args)-1])
	} else {
		err = extract(os.Args[len(os.Args)-1])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func create(name string) error {
	writer := tar.NewWriter(os.Stdout)
	walk := func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		header, err := tar.FileInfoHeader(info, "")
		if err != nil {
			return err
		}
		path = filepath.ToSlash(path)
		header.Name = strings.TrimLeft(strings.TrimPrefix(path, filepath.VolumeName(path)), "/")
		if err := writer.WriteHeader(header); err != nil || entry.IsDir() {
			return err
		}
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()
		_, err = io.Copy(writer, file)
		return err
	}
	if err := filepath.WalkDir(name, walk); err != nil {
		return err
	}
	return writer.Close()
}

func extract(folder string) error {
	reader := tar.NewReader(os.Stdin)
	for {
		header, err := reader.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		path := filepath.Join(folder, header.Name)
		if header.Typeflag == tar.TypeDir {
			err = os.MkdirAll(path, 0o777)
		} else {
			err = save(reader, path)
		}
		if err != nil {
			return err
		}
	}
}

func save(reader io.Reader, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.Copy(file, reader)
	return err
}
