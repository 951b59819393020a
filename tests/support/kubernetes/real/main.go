// Kubernetes' own API server, its controllers and etcd in one program, for tests. The first argument says which of them this
// process is; "proxy" is plain HTTP on a port of this machine in front of the API server, as kubectl proxy is.
package main

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
)

func main() {
	go endWithParent(os.Getppid())
	name := os.Args[1]
	os.Args = append([]string{name}, os.Args[2:]...)
	switch name {
	case "apiserver":
		os.Exit(cli.Run(apiserver.NewAPIServerCommand()))
	case "controllers":
		os.Exit(cli.Run(controllers.NewControllerManagerCommand()))
	case "etcd":
		fail(etcd(os.Args[1], os.Args[2], os.Args[3]))
	case "proxy":
		fail(proxy(os.Args[1], os.Args[2]))
	default:
		fail(fmt.Errorf("no such part: %s", name))
	}
}

// No test is there any more if it was killed.
func endWithParent(parent int) {
	for os.Getppid() == parent {
		time.Sleep(time.Second)
	}
	os.Exit(1)
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func etcd(folder string, clients string, peers string) error {
	config := embed.NewConfig()
	config.Dir = folder
	config.LogLevel = "warn"
	config.UnsafeNoFsync = true
	client, err := url.Parse(clients)
	if err != nil {
		return err
	}
	peer, err := url.Parse(peers)
	if err != nil {
		return err
	}
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*peer}
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	server, err := embed.StartEtcd(config)
	if err != nil {
		return err
	}
	return <-server.Err()
}

func proxy(address string, target string) error {
	at, err := url.Parse(target)
	if err != nil {
		return err
	}
	through := httputil.NewSingleHostReverseProxy(at)
	through.FlushInterval = -1
	// A certificate that the API server made for itself a moment ago; HTTP/2 would not upgrade to WebSocket.
	through.Transport = &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{}}
	return http.ListenAndServe(address, through)
}
